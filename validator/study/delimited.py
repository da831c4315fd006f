"""Rows of csv files, as pandas makes them, which the datasets library reads csv with."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import IO, Any

from validator.study import ceiling
from validator.study.values import UnreadableError

# What pandas takes for a missing value and for a truth value.
_MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
_TRUTH = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}


def rows(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their numbers. A first pass finds the columns that hold only numbers or only truth values: no text.
    Raises UnreadableError."""
    readers: dict[str, Callable[[str], Any]] = {}
    for _, row in _fields(stream):
        for name, value in row.items():
            if value is not None and readers.get(name) is not str:
                readers[name] = _reader(value, readers.get(name))
    stream.seek(0)
    for number, row in _fields(stream):
        yield number, {n: readers[n](value) if value is not None else None for n, value in row.items()}


def _reader(value: str, before: Callable[[str], Any] | None) -> Callable[[str], Any]:
    if value in _TRUTH:
        return _TRUTH.__getitem__ if before in (None, _TRUTH.__getitem__) else str
    try:
        float(value)
    except ValueError:
        return str
    return float if before in (None, float) else str


class _Lines:
    """Lines that end as they do on any system, each no longer than a row may be, and the quotation marks in them."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text, self.quotes, self.number = text, 0, 0

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(ceiling.ROW + 1):
            if len(line) > ceiling.ROW:
                raise ceiling.row(self.number + 1)
            self.quotes += line.count('"')
            yield line


def _fields(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, str | None]]]:
    csv.field_size_limit(ceiling.ROW)  # 131,072 characters else
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    lines, index, line = _Lines(text), 0, [""]
    try:
        fields = csv.reader(lines)
        header = _named(next(fields, []))
        for lines.number, line in enumerate((line for line in fields if line), 1):
            if lines.number == 1:  # pandas takes more values than names for an index in front of the columns
                index = max(len(line) - len(header), 0)
            if len(line) > len(header) + index:
                raise UnreadableError(lines.number, f"has {len(line)} fields, the header {len(header)}")
            filled = [*line[index:], *[""] * (len(header) + index - max(len(line), index))]
            yield lines.number, {n: None if v in _MISSING else v for n, v in zip(header, filled, strict=True)}
        if line[-1].endswith(("\n", "\r")) and lines.quotes % 2:
            raise UnreadableError(lines.number, "does not end: a quotation mark is not closed")
    except UnicodeDecodeError as err:
        raise UnreadableError(
            lines.number + 1, f"or one close behind it is not UTF-8 text ({err.reason}); save it as UTF-8"
        ) from None
    except csv.Error as err:
        if "field limit" in str(err):
            raise ceiling.row(lines.number + 1) from None
        raise UnreadableError(lines.number + 1, f"is not valid csv: {err}") from None
    finally:
        text.detach()


def _named(header: list[str]) -> list[str]:
    """Names of columns, as pandas tells those apart that are the same, or empty."""
    if len(header) > ceiling.COLUMNS:
        raise ceiling.columns(len(header))
    names: dict[str, int] = {}
    for at, given in enumerate(header):
        name, again = given or f"Unnamed: {at}", 0
        while name in names:
            names[given] = again = names.get(given, 0) + 1
            name = f"{given}.{again}"
        names[name] = 0
    return [*names]
