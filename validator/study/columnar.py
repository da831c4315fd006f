"""Rows of tables: csv with the standard library, parquet and arrow with pyarrow."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from validator.diagnostic import RecipeError

_BATCH = 1000
# What pandas, which the datasets library reads csv with, takes for a missing value and for a truth value.
_MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
_TRUTH = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}


class BrokenError(Exception):
    """A row, counted from 1, that cannot be read; 0: the file as a whole."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a csv file. A first pass finds the columns that hold only numbers or only truth values: no text."""
    readers: dict[str, Callable[[str], Any]] = {}
    for _, row in _fields(path):
        for name, value in row.items():
            if value is not None and readers.get(name) is not str:
                readers[name] = _reader(value, readers.get(name))
    for number, row in _fields(path):
        yield number, {n: readers[n](value) if value is not None else None for n, value in row.items()}


def _reader(value: str, before: Callable[[str], Any] | None) -> Callable[[str], Any]:
    if value in _TRUTH:
        return _TRUTH.__getitem__ if before in (None, _TRUTH.__getitem__) else str
    try:
        float(value)
    except ValueError:
        return str
    return float if before in (None, float) else str


def _fields(path: Path) -> Iterator[tuple[int, dict[str, str | None]]]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
        lines = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""))
        number, index, line = 0, 0, [""]
        try:
            header = next(lines, [])
            for number, line in enumerate((line for line in lines if line), 1):
                if number == 1:  # pandas takes more values than names for an index in front of the columns
                    index = max(len(line) - len(header), 0)
                if len(line) > len(header) + index:
                    raise BrokenError(number, f"has {len(line)} fields, the header {len(header)}")
                filled = [*line[index:], *[""] * (len(header) + index - max(len(line), index))]
                yield number, {n: None if v in _MISSING else v for n, v in zip(header, filled, strict=True)}
            if line[-1].endswith("\n") and _quotes(path) % 2:
                raise BrokenError(number, "does not end: a quotation mark is not closed")
        except UnicodeDecodeError as err:
            raise BrokenError(
                number + 1, f"or one close behind it is not UTF-8 text ({err.reason}); save it as UTF-8"
            ) from None
        except csv.Error as err:
            raise BrokenError(number + 1, f"is not valid csv: {err}") from None


def _quotes(path: Path) -> int:
    """Quotation marks in a file."""
    with path.open("rb") as stream:
        return sum(part.count(b'"') for part in iter(lambda: stream.read(1 << 20), b""))


def _tables(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        import pyarrow as pa
    except ImportError:
        raise RecipeError(f"`{path}` needs pyarrow to be read: pip install pyarrow") from None
    number = 0
    try:
        for batch in _batches(path):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError) as err:
        raise BrokenError(
            number, f"is not a valid {path.suffix[1:]} file: {str(err).splitlines()[0].lower()}"
        ) from None


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        yield from pq.ParquetFile(path).iter_batches(_BATCH)
        return
    with pa.memory_map(str(path)) as source:
        try:
            yield from pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(source)
            yield from (reader.get_batch(index) for index in range(reader.num_record_batches))


READERS: dict[str, Callable[[Path], Iterator[tuple[int, dict[str, Any]]]]] = {
    "csv": _csv,
    "parquet": _tables,
    "arrow": _tables,
}
