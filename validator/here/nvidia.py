"""What nvidia-smi shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from validator.here import program
from validator.here.accelerator import Accelerator, Shown, number

_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used")
_LOST = "Unable to determine the device handle"  # of a device that has fallen off the bus
_MIB = 1024  # in a GiB
_WHOLE = re.compile(r"GPU \d+: .*\(UUID: (\S+)\)")
_SLICE = re.compile(r"\s+MIG (\S*?(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (\S+)\)")


def accelerators() -> Shown | None:
    """The devices in the order of the PCI bus, slices of one (MIG) in its place; None where the program is not
    installed. Raises RecipeError where it shows none."""
    query = f"--query-gpu={','.join(_FIELDS)}"
    text = program.output("nvidia-smi", query, "--format=csv,noheader,nounits")
    if text is None:
        return None
    whole = list(_whole(text))
    if not whole:
        raise program.fault("nvidia-smi", text)
    slices = list(_slices(program.output("nvidia-smi", "-L") or "", {device.names[1]: device for device in whole}))
    lost = tuple(line.strip() for line in text.splitlines() if line.startswith(_LOST))
    return Shown([part for device in whole for part in _slices_of(device, slices) or [device]], lost)


class Driver(NamedTuple):
    """The kernel's driver, by its major number, and the compute capabilities of the devices that it shows; none where
    nvidia-smi is older than that question (driver 510)."""

    release: str
    capabilities: tuple[float, ...]

    @property
    def major(self) -> int:
        return int(self.release.partition(".")[0])


def driver() -> Driver | None:
    """None where there is no program, or it shows no device."""
    for fields in ("driver_version,compute_cap", "driver_version"):
        text = program.output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader") or ""
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
        rows = [row for row in rows if row[0].partition(".")[0].isdecimal()]
        if rows:
            capabilities = (number(cell) for row in rows for cell in row[1:])
            return Driver(rows[0][0], tuple(one for one in capabilities if one))
    return None


def _slices_of(device: Accelerator, slices: list[Accelerator]) -> list[Accelerator]:
    return [part for part in slices if part.names[1:] == device.names]


def _whole(text: str) -> Iterator[Accelerator]:
    """The rows of the query; warnings stand between them."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_FIELDS) and cells[0].isdecimal():
            index, uuid, name, total, used = cells
            yield Accelerator(name, _gib(total), _gib(used), (index, uuid))


def _gib(mib: str) -> float | None:
    size = number(mib)
    return None if size is None else size / _MIB


def _slices(text: str, whole: dict[str, Accelerator]) -> Iterator[Accelerator]:
    """The slices in the list of devices. Its memory is in the name of its profile: `1g.20gb`."""
    device = None
    for line in text.splitlines():
        if match := _WHOLE.match(line):
            device = whole.get(match[1])
        elif device and (match := _SLICE.match(line)):
            yield Accelerator(
                f"{device.product} MIG {match[1]}", float(match[2]), None, (match[3], *device.names), True
            )
