"""What npu-smi shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.here import program
from validator.here.accelerator import Accelerator, Shown
from validator.here.holder import Holder

_MIB = 1024  # in a GiB
_PAIR = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})(?!\d)")


def accelerators() -> Shown | None:
    """The devices in the table's order, each die of a 910C by itself; None where the program is not installed. Raises
    RecipeError where it shows none."""
    text = program.output("npu-smi", "info")
    if text is None:
        return None
    dies = [_device(str(index), *pair) for index, pair in enumerate(_pairs(text))]
    if not dies:
        raise program.fault("npu-smi", text)
    return Shown(dies)


def health() -> dict[str, str]:
    """The driver's word on each device, by its name, such as OK or Alarm; none where the program is not installed."""
    pairs = _pairs(program.output("npu-smi", "info") or "")
    return {str(index): first[1] for index, (first, _) in enumerate(pairs)}


def holders() -> list[Holder]:
    """The processes of the second table, which names a device by the numbers of its card and its chip."""
    text = program.output("npu-smi", "info") or ""
    places = [(first[0].split()[0], second[0].split()[0]) for first, second in _pairs(text)]
    return list(_holders(text, places))


def _holders(text: str, places: list[tuple[str, str]]) -> Iterator[Holder]:
    for line in text.partition("Process id")[2].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[1].isdecimal():
            card, _, chip = cells[0].partition(" ")
            place = (card, chip.strip())
            device = str(places.index(place)) if place in places else None
            yield Holder(int(cells[1]), cells[2], int(cells[3]) / _MIB if cells[3].isdecimal() else None, device)


def _pairs(text: str) -> list[tuple[list[str], list[str]]]:
    """The two rows of each die."""
    rows = list(_rows(text))
    return list(zip(rows[::2], rows[1::2], strict=False))


def _rows(text: str) -> Iterator[list[str]]:
    """The cells of the table of devices: two rows each, of which the first has the name, the second the memory."""
    for line in text.partition("Process id")[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0][:1].isdecimal():
            yield cells


def _device(index: str, first: list[str], second: list[str]) -> Accelerator:
    """Used and total are given for the memory of the control processor and for HBM, in MB of 2^20 bytes, or for the one
    that there is; the larger is the device's."""
    pairs = ((int(used) / _MIB, int(total) / _MIB) for used, total in _PAIR.findall(second[2]))
    used, total = max(pairs, key=lambda pair: pair[1], default=(None, None))
    return Accelerator(first[0].partition(" ")[2].strip(), total, used, (index,))
