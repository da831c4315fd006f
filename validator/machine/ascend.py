"""Reads Ascend devices, their health and the processes on them from `npu-smi`."""

from __future__ import annotations

import re

from validator.machine import driver
from validator.machine.driver import MIB_PER_GIB, Accelerator, DeviceProcess, DriverReading

_RELEASE = re.compile(r"npu-smi\s.*\bVersion:\s*(\S+)")
_USED_AND_TOTAL = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})(?!\d)")


def read_accelerators() -> DriverReading | None:
    """Read the Ascend devices in the order of npu-smi's table. A 910C counts as two devices, one for each die. Return
    None if npu-smi is not installed. Raises DriverError if npu-smi shows no device."""
    text = driver.run_tool("npu-smi", "info")
    if text is None:
        return None
    dies = [_parse_die(str(index), *pair) for index, pair in enumerate(_die_rows(text))]
    if not dies:
        raise driver.no_device_error("npu-smi", text)
    return DriverReading(dies)


def has_driver() -> bool:
    """Return whether npu-smi is installed and prints something, which shows that the machine has Ascend's driver."""
    return bool(driver.run_tool("npu-smi", "info"))


def read_driver_release() -> str:
    """Return the release of the driver, which the head of npu-smi's table names. Empty if npu-smi is not installed or
    names none."""
    match = _RELEASE.search(driver.run_tool("npu-smi", "info") or "")
    return match[1] if match else ""


def read_health() -> dict[str, str]:
    """Return the health that npu-smi prints for each device, such as OK or Alarm, by the index of the device. The
    mapping is empty if npu-smi is not installed."""
    pairs = _die_rows(driver.run_tool("npu-smi", "info") or "")
    return {str(index): first[1] for index, (first, _) in enumerate(pairs)}


def read_processes() -> list[DeviceProcess]:
    """Read the processes that hold device memory, from the second table of npu-smi. That table names a device by its
    card number and chip number; the first table translates these numbers into the index of the device."""
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
    """Return the cells of npu-smi's table of devices as two rows for each die. The first row holds the name of the die,
    the second row its memory."""
    lines = text.partition("Process id")[0].splitlines()
    table = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    rows = [cells for cells in table if len(cells) == 3 and cells[0][:1].isdecimal()]
    return list(zip(rows[::2], rows[1::2], strict=False))


def _parse_die(index: str, first: list[str], second: list[str]) -> Accelerator:
    """Return the device for one die, with its memory in GiB, from the cells of its two rows in npu-smi's table. The
    second row gives used and total memory in MB of 2^20 bytes, for the control processor, for HBM, or for each of the
    two. The pair with the larger total is the memory of the device."""
    pairs = ((int(used) / MIB_PER_GIB, int(total) / MIB_PER_GIB) for used, total in _USED_AND_TOTAL.findall(second[2]))
    used, total = max(pairs, key=lambda pair: pair[1], default=(None, None))
    return Accelerator(first[0].partition(" ")[2].strip(), total, used, (index,))
