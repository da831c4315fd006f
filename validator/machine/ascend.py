"""What npu-smi reports: Ascend devices, their health, processes on them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.machine import driver_tool
from validator.machine.accelerator import MIB_PER_GIB, Accelerator, DeviceProcess, DriverReading

_USED_AND_TOTAL = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})(?!\d)")


def read_accelerators() -> DriverReading | None:
    """The devices in the table's order, each die of a 910C by itself; None where the program is not installed. Raises
    RecipeError where it shows none."""
    text = driver_tool.run_tool("npu-smi", "info")
    if text is None:
        return None
    dies = [_parse_die(str(index), *pair) for index, pair in enumerate(_die_rows(text))]
    if not dies:
        raise driver_tool.no_device_error("npu-smi", text)
    return DriverReading(dies)


def read_health() -> dict[str, str]:
    """The driver's word on each device, by its name, such as OK or Alarm; none where the program is not installed."""
    pairs = _die_rows(driver_tool.run_tool("npu-smi", "info") or "")
    return {str(index): first[1] for index, (first, _) in enumerate(pairs)}


def read_processes() -> list[DeviceProcess]:
    """The processes of the second table, which names a device by the numbers of its card and its chip."""
    text = driver_tool.run_tool("npu-smi", "info") or ""
    places = [(first[0].split()[0], second[0].split()[0]) for first, second in _die_rows(text)]
    return list(_parse_processes(text, places))


def _parse_processes(text: str, places: list[tuple[str, str]]) -> Iterator[DeviceProcess]:
    for line in text.partition("Process id")[2].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[1].isdecimal():
            card, _, chip = cells[0].partition(" ")
            place = (card, chip.strip())
            device = str(places.index(place)) if place in places else None
            yield DeviceProcess(
                int(cells[1]), cells[2], int(cells[3]) / MIB_PER_GIB if cells[3].isdecimal() else None, device
            )


def _die_rows(text: str) -> list[tuple[list[str], list[str]]]:
    """The two rows of each die."""
    rows = list(_table_rows(text))
    return list(zip(rows[::2], rows[1::2], strict=False))


def _table_rows(text: str) -> Iterator[list[str]]:
    """The cells of the table of devices: two rows each, of which the first has the name, the second the memory."""
    for line in text.partition("Process id")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0][:1].isdecimal():
            yield cells


def _parse_die(index: str, first: list[str], second: list[str]) -> Accelerator:
    """Used and total are given for the memory of the control processor and for HBM, in MB of 2^20 bytes, or for the one
    that there is; the larger is the device's."""
    pairs = ((int(used) / MIB_PER_GIB, int(total) / MIB_PER_GIB) for used, total in _USED_AND_TOTAL.findall(second[2]))
    used, total = max(pairs, key=lambda pair: pair[1], default=(None, None))
    return Accelerator(first[0].partition(" ")[2].strip(), total, used, (index,))
