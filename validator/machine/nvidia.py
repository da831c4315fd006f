"""Reads NVIDIA devices and MIG slices, the release of the driver, the state of each device and the processes on it from
`nvidia-smi`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from validator.machine import driver
from validator.machine.driver import MIB_PER_GIB, Accelerator, DeviceProcess, DriverReading, parse_size

_QUERY_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used")
_UNREACHABLE_DEVICE = "Unable to determine the device handle"  # of a device that has fallen off the bus
_DEVICE_LINE = re.compile(r"GPU \d+: .*\(UUID: (\S+)\)")
_SLICE_LINE = re.compile(r"\s+MIG (\S*?(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (\S+)\)")


def read_accelerators() -> DriverReading | None:
    """Read the NVIDIA devices in the order of the PCI bus. A device that is split by MIG is replaced by its slices.
    Return None if nvidia-smi is not installed. Raises DriverError if nvidia-smi shows no device."""
    query = f"--query-gpu={','.join(_QUERY_FIELDS)}"
    text = driver.run_tool("nvidia-smi", query, "--format=csv,noheader,nounits")
    if text is None:
        return None
    gpus = list(_parse_whole_devices(text))
    if not gpus:
        raise driver.no_device_error("nvidia-smi", text)
    by_uuid = {device.visible_ids[1]: device for device in gpus}
    slices = list(_parse_slices(driver.run_tool("nvidia-smi", "-L") or "", by_uuid))
    lost = tuple(line.strip() for line in text.splitlines() if line.startswith(_UNREACHABLE_DEVICE))
    parts = ([part for part in slices if part.visible_ids[1:] == device.visible_ids] or [device] for device in gpus)
    return DriverReading(list(chain.from_iterable(parts)), lost)


class NvidiaDriver(NamedTuple):
    """Release of NVIDIA's kernel driver, and the compute capability of each device. The tuple of capabilities is empty
    if the driver is older than 510, whose nvidia-smi cannot print them."""

    release: str
    capabilities: tuple[float, ...]

    @property
    def major(self) -> int:
        return int(self.release.partition(".")[0])


def read_driver() -> NvidiaDriver | None:
    """Read the driver's release and the compute capabilities of the devices. Return None if nvidia-smi is not installed
    or shows no device."""
    for fields in ("driver_version,compute_cap", "driver_version"):
        text = driver.run_tool("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader") or ""
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
        rows = [row for row in rows if row[0].partition(".")[0].isdecimal()]
        if rows:
            capabilities = (float(cell) for row in rows for cell in row[1:] if cell.replace(".", "", 1).isdecimal())
            return NvidiaDriver(rows[0][0], tuple(capabilities))
    return None


def _parse_whole_devices(text: str) -> Iterator[Accelerator]:
    """Yield the devices in the rows that nvidia-smi prints for `_QUERY_FIELDS`. Warnings between the rows are
    skipped."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_QUERY_FIELDS) and cells[0].isdecimal():
            index, uuid, name, total, used = cells
            sizes = parse_size(total, MIB_PER_GIB), parse_size(used, MIB_PER_GIB)
            yield Accelerator(name, *sizes, (index, uuid))


def _parse_slices(text: str, gpus: dict[str, Accelerator]) -> Iterator[Accelerator]:
    """Yield the MIG slices in the output of `nvidia-smi -L`. `gpus` holds the devices by UUID. The memory of a slice is
    read from the name of its profile: `1g.20gb` has 20 GiB."""
    device = None
    for line in text.splitlines():
        if match := _DEVICE_LINE.match(line):
            device = gpus.get(match[1])
        elif device and (match := _SLICE_LINE.match(line)):
            product = f"{device.product} MIG {match[1]}"
            yield Accelerator(product, float(match[2]), None, (match[3], *device.visible_ids), True)


_XID_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_DEVICE_HEADING = re.compile(r"^GPU (?=[0-9A-Fa-f]{8}:)", re.MULTILINE)
_FACT_LINE = re.compile(r"( +)(\S.*?) *(?:: (.*?) *)?")
_PROCESS_LINES = re.compile(
    r"^ +Process ID +: (\d+)\n +Type +: \S+\n +Name +: (.*)\n +Used GPU Memory +: (?:(\d+) MiB)?", re.MULTILINE
)


class NvidiaDevice(NamedTuple):
    """One device in the output of `nvidia-smi -q`. The keys of `facts` join headings and name: `Fabric / State` has the
    value `Completed`. `processes` refer to the device by its UUID."""

    uuid: str
    facts: Mapping[str, str]
    processes: tuple[DeviceProcess, ...]


def read_devices() -> list[NvidiaDevice]:
    """Read all devices that `nvidia-smi -q` describes. The list is empty if nvidia-smi is not installed. Raises
    DriverError if nvidia-smi does not answer in time."""
    return [_parse_device(part) for part in _DEVICE_HEADING.split(driver.run_tool("nvidia-smi", "-q") or "")[1:]]


def read_processes() -> list[DeviceProcess]:
    """Read the processes that hold memory of an NVIDIA device."""
    return [process for device in read_devices() for process in device.processes]


def read_xids() -> list[tuple[str, int]]:
    """Read NVIDIA's errors (Xid) in the kernel's log since the node was started. Each tuple holds the PCI bus address
    of a device and the number of the error; repeated errors of a device appear once. The list is empty if the user may
    not read the log."""
    log = driver.run_tool("dmesg") or ""
    return list(dict.fromkeys((bus, int(code)) for bus, code in _XID_LINE.findall(log)))


def _parse_device(part: str) -> NvidiaDevice:
    facts = dict(_parse_facts(part))
    uuid = facts.get("GPU UUID", "")
    rows = _PROCESS_LINES.findall(part)
    holders = (DeviceProcess(int(pid), name, parse_size(size, MIB_PER_GIB), uuid) for pid, name, size in rows)
    return NvidiaDevice(uuid, facts, tuple(holders))


def _parse_facts(part: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each line `name : value` about one device. A name is preceded by the headings above it,
    as in `Fabric / State`. Headings are lines without a value; the lines below them are indented."""
    headings: dict[int, str] = {}
    for line in part.splitlines():
        if match := _FACT_LINE.fullmatch(line):
            indent, name, value = len(match[1]), match[2], match[3]
            headings = {depth: heading for depth, heading in headings.items() if depth < indent} | {indent: name}
            if value is not None:
                yield " / ".join(headings.values()), value
