"""Reads npu-smi: Ascend devices, their health, processes on them."""

from __future__ import annotations

import re

from validator.machine import driver
from validator.machine.driver import MIB_PER_GIB, Accelerator, DeviceProcess, DriverReading

_USED_AND_TOTAL = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})(?!\d)")


def read_accelerators() -> DriverReading | None:
    """Read the devices in the table's order, each die of a 910C by itself; None if npu-smi is not installed. Raises
    DriverError if it shows no device."""
    text = driver.run_tool("npu-smi", "info")
    if text is None:
        return None
    dies = [_parse_die(str(index), *pair) for index, pair in enumerate(_die_rows(text))]
    if not dies:
        raise driver.no_device_error("npu-smi", text)
    return DriverReading(dies)


def has_driver() -> bool:
    """Return whether npu-smi is installed and prints something."""
    return bool(driver.run_tool("npu-smi", "info"))


def read_health() -> dict[str, str]:
    """Read the driver's word on each device, such as OK or Alarm, by index; none if npu-smi is not installed."""
    pairs = _die_rows(driver.run_tool("npu-smi", "info") or "")
    return {str(index): first[1] for index, (first, _) in enumerate(pairs)}


def read_processes() -> list[DeviceProcess]:
    """Read the processes of the second table, which names a device by the numbers of its card and its chip."""
    text = driver.run_tool("npu-smi", "info") or ""
    places = [(first[0].split()[0], second[0].split()[0]) for first, second in _die_rows(text)]
    found = []
    for line in text.partition("Process id")[2].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[1].isdecimal():
            card, _, chip = cells[0].partition(" ")
            place = (card, chip.strip())
            device = str(places.index(place)) if place in places else None
            gib = int(cells[3]) / MIB_PER_GIB if cells[3].isdecimal() else None
            found.append(DeviceProcess(int(cells[1]), cells[2], gib, device))
    return found


def _die_rows(text: str) -> list[tuple[list[str], list[str]]]:
    """Return the cells of the table of devices: two rows for each die, the first with its name, the second with its
    memory."""
    lines = text.partition("Process id")[0].splitlines()
    table = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    rows = [cells for cells in table if len(cells) == 3 and cells[0][:1].isdecimal()]
    return list(zip(rows[::2], rows[1::2], strict=False))


def _parse_die(index: str, first: list[str], second: list[str]) -> Accelerator:
    """Return the die with its memory. The row gives used and total, in MB of 2^20 bytes, for the control processor and
    for HBM, or for one of them; the larger is the device's memory."""
    pairs = ((int(used) / MIB_PER_GIB, int(total) / MIB_PER_GIB) for used, total in _USED_AND_TOTAL.findall(second[2]))
    used, total = max(pairs, key=lambda pair: pair[1], default=(None, None))
    return Accelerator(first[0].partition(" ")[2].strip(), total, used, (index,))
