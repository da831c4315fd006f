"""Rows of a data file by its type, and the readers of CSV files (as pandas reads them) and text files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from validator.dataset import arrow_rows, reading_limits
from validator.dataset.data_files import open_decompressed
from validator.dataset.json_rows import Rows, read_json, read_json_lines
from validator.dataset.reading_limits import UnreadableError
from validator.errors import RecipeError

# What pandas takes for a missing value and for a truth value.
_MISSING_VALUES = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
_TRUTH_VALUES = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}


def read_csv(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their numbers. A first pass finds the columns that hold only numbers or only truth values: no text.
    Raises UnreadableError."""
    readers: dict[str, Callable[[str], Any]] = {}
    for _, row in _csv_fields(stream):
        for name, value in row.items():
            if value is not None and readers.get(name) is not str:
                readers[name] = _cell_parser(value, readers.get(name))
    stream.seek(0)
    for number, row in _csv_fields(stream):
        yield number, {n: readers[n](value) if value is not None else None for n, value in row.items()}


def _cell_parser(value: str, before: Callable[[str], Any] | None) -> Callable[[str], Any]:
    if value in _TRUTH_VALUES:
        return _TRUTH_VALUES.__getitem__ if before in (None, _TRUTH_VALUES.__getitem__) else str
    try:
        float(value)
    except ValueError:
        return str
    return float if before in (None, float) else str


class _BoundedLines:
    """Lines that end as they do on any system, each no longer than a row may be, and the quotation marks in them."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text, self.quotes, self.number = text, 0, 0

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(reading_limits.MAX_ROW_BYTES + 1):
            if len(line) > reading_limits.MAX_ROW_BYTES:
                raise reading_limits.row_too_large(self.number + 1)
            self.quotes += line.count('"')
            yield line


def _csv_fields(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, str | None]]]:
    csv.field_size_limit(reading_limits.MAX_ROW_BYTES)  # 131,072 characters else
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    lines, index, line = _BoundedLines(text), 0, [""]
    try:
        fields = csv.reader(lines)
        header = _column_names(next(fields, []))
        for lines.number, line in enumerate((line for line in fields if line), 1):
            if lines.number == 1:  # pandas takes more values than names for an index in front of the columns
                index = max(len(line) - len(header), 0)
            if len(line) > len(header) + index:
                raise UnreadableError(lines.number, f"has {len(line)} fields, the header {len(header)}")
            filled = [*line[index:], *[""] * (len(header) + index - max(len(line), index))]
            yield lines.number, {n: None if v in _MISSING_VALUES else v for n, v in zip(header, filled, strict=True)}
        if line[-1].endswith(("\n", "\r")) and lines.quotes % 2:
            raise UnreadableError(lines.number, "does not end: a quotation mark is not closed")
    except UnicodeDecodeError as err:
        raise UnreadableError(
            lines.number + 1, f"or one close behind it is not UTF-8 text ({err.reason}); save it as UTF-8"
        ) from None
    except csv.Error as err:
        if "field limit" in str(err):
            raise reading_limits.row_too_large(lines.number + 1) from None
        raise UnreadableError(lines.number + 1, f"is not valid csv: {err}") from None
    finally:
        text.detach()


def _column_names(header: list[str]) -> list[str]:
    """Names of columns, as pandas tells those apart that are the same, or empty."""
    if len(header) > reading_limits.MAX_COLUMNS:
        raise reading_limits.too_many_columns(len(header))
    names: dict[str, int] = {}
    for at, given in enumerate(header):
        name, again = given or f"Unnamed: {at}", 0
        while name in names:
            names[given] = again = names.get(given, 0) + 1
            name = f"{given}.{again}"
        names[name] = 0
    return [*names]


def read_rows(path: Path, span: tuple[int, int] | None = None) -> Rows:
    """Rows with their numbers: of the line in files of lines, else of the row. `span` is the part of a file of lines to
    read, in bytes; numbers then count from its beginning. Raises UnreadableError, and
    RecipeError for what is not looked into."""
    try:
        with open_decompressed(path) as stream:
            yield from read_json_lines(stream, span) if span else _READERS[path.suffix[1:]](stream)
    except RecipeError as err:
        raise type(err)(f"`{path}`: {err}") from None


def first_rows(paths: Iterable[Path], number: int) -> list[dict[str, Any]]:
    """So many rows of all files together, fewer where they are large, up to one that cannot be read; files of no known
    type have none. Raises UnreadableError where nothing can be read."""
    held, weight = list[dict[str, Any]](), 0
    try:
        for _, row in chain.from_iterable(read_rows(path) for path in paths if path.suffix[1:] in _READERS):
            held.append(row)
            weight += reading_limits.approximate_size(row)
            if len(held) == number or weight > reading_limits.MAX_BLOCK_BYTES:
                break
    except UnreadableError:
        if not held:
            raise
    return held


def count_rows(path: Path) -> int:
    """How many rows a file has: what a parquet file says, else the rows that can be read. Raises UnreadableError."""
    if path.suffix != ".parquet":
        return sum(1 for _ in read_rows(path))
    with open_decompressed(path) as stream:
        return arrow_rows.parquet_row_count(stream)


def _read_text(stream: IO[bytes]) -> Rows:
    """Every line is a row, blank ones too."""
    number, lines = 0, io.TextIOWrapper(stream, "utf-8")
    try:
        for number, line in enumerate(iter(partial(lines.readline, reading_limits.MAX_ROW_BYTES + 1), ""), 1):
            if len(line) > reading_limits.MAX_ROW_BYTES:
                raise reading_limits.row_too_large(number)
            yield number, {"text": line.rstrip("\n")}
    except UnicodeDecodeError:
        raise UnreadableError(number + 1, "or one close behind it is not UTF-8 text; save it as UTF-8") from None
    finally:
        lines.detach()


_READERS: dict[str, Callable[[IO[bytes]], Rows]] = {
    "json": read_json, "jsonl": read_json, "txt": _read_text, "csv": read_csv,
    "parquet": partial(arrow_rows.read_table, "parquet"), "arrow": partial(arrow_rows.read_table, "arrow"),
}  # fmt: skip
