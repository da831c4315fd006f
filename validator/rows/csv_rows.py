"""Rows of CSV data as pandas reads them, because the datasets library reads CSV with pandas: column types, missing
values, names for columns without a name. Also rows of plain text."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from validator.rows import reading_limits
from validator.rows.reading_limits import UnreadableError

# What pandas takes for a missing value (pandas/_libs/parsers.pyx, STR_NA_VALUES) and for a truth value.
_MISSING_VALUES = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
_TRUTH_VALUES = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}


def read_csv(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first line and the values of each row.

    The stream is read twice. The first pass finds the columns that hold only numbers or only truth values, because
    their values are not text. Raises UnreadableError if the stream is not valid CSV in UTF-8."""
    parsers: dict[str, Callable[[str], Any]] = {}
    for _, row in _text_rows(stream):
        for name, value in row.items():
            if value is not None and parsers.get(name) is not str:
                parsers[name] = _cell_parser(value, parsers.get(name))
    stream.seek(0)
    for line, row in _text_rows(stream):
        yield line, {n: parsers[n](value) if value is not None else None for n, value in row.items()}


def _cell_parser(value: str, before: Callable[[str], Any] | None) -> Callable[[str], Any]:
    """Return the parser for the values of a column, after one more value was read. `before`: the parser that fits all
    values above; None if there are none. The parser is `str` unless all values are numbers or all are truth values."""
    if value in _TRUTH_VALUES:
        return _TRUTH_VALUES.__getitem__ if before in (None, _TRUTH_VALUES.__getitem__) else str
    try:
        float(value)
    except ValueError:
        return str
    return float if before in (None, float) else str


class _BoundedLines:
    """The lines of a UTF-8 stream. A line of more than MAX_ROW_BYTES characters raises TooLargeError. `number` lines
    and `quotes` quotation marks were read so far."""

    def __init__(self, stream: IO[bytes], encoding: str, newline: str | None) -> None:
        self._stream, self._encoding, self._newline = stream, encoding, newline
        self.quotes, self.number = 0, 0

    def __iter__(self) -> Iterator[str]:
        text = io.TextIOWrapper(self._stream, self._encoding, newline=self._newline)
        try:
            while line := text.readline(reading_limits.MAX_ROW_BYTES + 1):
                if len(line) > reading_limits.MAX_ROW_BYTES:
                    raise reading_limits.row_too_large(self.number + 1)
                self.number += 1
                self.quotes += line.count('"')
                yield line
        except UnicodeDecodeError as err:
            number = self.number + 1 + len(re.findall(rb"\r\n|\r|\n", err.object[: err.start]))
            raise UnreadableError(number, f"is not UTF-8 text ({err.reason}); save it as UTF-8") from None
        finally:
            with contextlib.suppress(ValueError):  # the stream is closed already
                text.detach()


def _text_rows(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield the first line of each row and its values as text; None for a missing value. Raises UnreadableError if the
    stream is not valid CSV in UTF-8."""
    csv.field_size_limit(reading_limits.MAX_ROW_BYTES)  # by default 131,072 characters; pandas has no limit
    lines, index, row, start, first = _BoundedLines(stream, "utf-8-sig", newline=""), -1, [""], 1, 1
    try:
        fields = csv.reader(lines)
        header = _column_names(next(fields, []))
        first = lines.number + 1
        for values in fields:
            start, first = first, lines.number + 1
            if not values:
                continue
            row = values
            if index < 0:  # pandas takes more values than names for an index in front of the columns
                index = max(len(row) - len(header), 0)
            if len(row) > len(header) + index:
                why = f"has {len(row)} fields, the header {len(header)}"
                raise UnreadableError(start, "; ".join(filter(None, (why, separator_fault(header)))))
            filled = [*row[index:], *[""] * (len(header) + index - max(len(row), index))]
            yield start, {n: None if v in _MISSING_VALUES else v for n, v in zip(header, filled, strict=True)}
        if row[-1].endswith(("\n", "\r")) and lines.quotes % 2:
            raise UnreadableError(start, "does not end: a quotation mark is not closed")
    except csv.Error as err:
        if "field limit" in str(err):
            raise reading_limits.row_too_large(first) from None
        raise UnreadableError(first, f"is not valid csv: {err}") from None


# What other programs put between values; Excel writes semicolons where the comma is the decimal mark.
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def separator_fault(names: Sequence[str]) -> str:
    """Return, as text for a message, that values are separated by something else than commas, and what to do; an empty
    string if they are not. `names`: the column names that commas make of the header line."""
    header = ",".join(map(str, names))
    for mark, words in _OTHER_SEPARATORS.items():
        if header.count(mark) > header.count(","):
            found = f"its values are separated by {words}, and LLaMA-Factory reads commas: save it with commas"
            code = f"writer(open('new.csv', 'w', newline='')).writerows(reader(open('old.csv'), delimiter={mark!r}))"
            return f'{found}, in a spreadsheet or by python -c "from csv import *; {code}"'
    return ""


def count_csv_rows(stream: IO[bytes]) -> int:
    """Return the number of rows of CSV data, without their values. A line break between quotation marks ends no row.
    Raises UnreadableError if the stream is not valid CSV in UTF-8."""
    csv.field_size_limit(reading_limits.MAX_ROW_BYTES)
    try:
        lines = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""))
        return max(sum(1 for line in lines if line) - 1, 0)
    except (csv.Error, UnicodeDecodeError) as err:
        raise UnreadableError(0, f"is not valid csv in UTF-8: {err}") from None


def _column_names(header: list[str]) -> list[str]:
    """Return the column names that pandas makes of a header line: a repeated name gets a number, an empty name becomes
    `Unnamed: 3`."""
    if len(header) > reading_limits.MAX_COLUMNS:
        raise reading_limits.too_many_columns(len(header))
    names: dict[str, int] = {}
    for at, header_name in enumerate(header):
        name, repetition = header_name or f"Unnamed: {at}", 0
        while name in names:
            names[header_name] = repetition = names.get(header_name, 0) + 1
            name = f"{header_name}.{repetition}"
        names[name] = 0
    return [*names]


def read_text(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line as a row with the column `text`; blank lines are rows, too. Raises UnreadableError if the stream
    is not UTF-8."""
    lines = _BoundedLines(stream, "utf-8", newline=None)
    for line in lines:
        yield lines.number, {"text": line.rstrip("\n")}
