"""How many rows a data file holds, and how sure that is. Every command takes the number from here.

A small file is read as LLaMA-Factory reads it, which also shows whether it can be read. Of a larger file the first rows
are read and all rows are counted, a third of a second at most. Of a file that would take longer, the beginning is
counted and the number is an estimate."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from validator.errors import RecipeError, os_reason
from validator.recipe import safe_read
from validator.rows.csv_rows import count_csv_rows, read_csv, read_text
from validator.rows.json_rows import read_json
from validator.rows.parquet_footer import parquet_row_count
from validator.rows.reading_limits import TooLargeError, UnreadableError
from validator.run import data_streams
from validator.wording import plural

_READERS = {"json": read_json, "jsonl": read_json, "csv": read_csv, "txt": read_text}
# Files that are read whole, bytes.
_MAX_WHOLE_BYTES = {"json": 2 << 20, "csv": 2 << 20, "jsonl": 4 << 20, "txt": 4 << 20}
# Bytes that are counted: 1 GB/s where each line is a row, 0.1 GB/s where values must be parsed.
_MAX_LINES_BYTES, _MAX_PARSED_BYTES = 128 << 20, 32 << 20
# Rows that are counted, so that tiny rows take no longer than long ones.
_MAX_LINES, _MAX_VALUES = 2 << 20, 1 << 18
_HEAD_BYTES = 1 << 18
_HEAD_ROWS = 1000  # rows
_LIST_START = re.compile(rb"\s*\[[ \t\r]*(\n[ \t]*\{)")
_BLANK_LINES = re.compile(rb"\n\s+")
_GAP = re.compile(r"[\s,]*")


class Rows(NamedTuple):
    """The rows of a data set. `number`: how many; an estimate if `exact` is False. `columns`: names of all columns;
    None unless every row was read. `problem`: why no row can be read. `head`: the first rows, enough to tell their
    format; empty for a table such as Parquet, of which only the number is known."""

    number: int = 0
    exact: bool = True
    columns: frozenset[str] | None = None
    problem: str | None = None
    head: tuple[Mapping[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.number:,}" if self.exact else f"about {self.number:,}"

    @property
    def samples(self) -> str:
        """The number with its noun for a message, such as "about 3,000 samples"."""
        return f"{self} {plural(self.number, 'sample')}"


def sum_rows(parts: Iterable[Rows]) -> Rows:
    """Return the rows of several files, added up as the rows of one data set."""
    total = Rows(columns=frozenset())
    for part in parts:
        both = total.columns is not None and part.columns is not None
        columns = (total.columns or frozenset()) | (part.columns or frozenset()) if both else None
        exact, problem = total.exact and part.exact, total.problem or part.problem
        total = Rows(total.number + part.number, exact, columns, problem, (total.head + part.head)[:_HEAD_ROWS])
    return total


_SPLIT_SLICE = re.compile(r"train(?:\[(-?\d+)?(%)?:(-?\d+)?(%)?\])?")


def parse_split(split: str, count: int) -> range:
    """Return the row numbers of a split such as `train[:20%]` in a data set of `count` rows. Raises RecipeError for any
    other notation of a split."""
    bounds = _SPLIT_SLICE.fullmatch(split)
    if bounds is None:
        raise RecipeError(f"the split `{split}` is not understood")

    def bound(number: str | None, percent: str | None) -> int | None:
        return round(count * int(number) / 100) if number and percent else int(number) if number else None

    return range(count)[bound(bounds[1], bounds[2]) : bound(bounds[3], bounds[4])]


def count_rows(path: Path) -> Rows | None:
    """Return the number and the first rows of one data file. None for a file that only `data` can read: Arrow, a file
    that is packed in an uncommon way or is very large when unpacked, and rows beyond the reading limits."""
    if path.suffix[1:] not in (*_READERS, "parquet") or safe_read.path_kind(path) != "file":
        return None
    try:
        stat = path.stat()
        return _count_in_file(str(path), stat.st_size, stat.st_mtime_ns)
    except OSError as err:
        return Rows(problem=f"`{path}` cannot be read: {os_reason(err)}")


@lru_cache(maxsize=1024)
def _count_in_file(path: str, size: int, _changed: int) -> Rows | None:
    try:
        with data_streams.open_raw(Path(path)) as raw:
            packing = data_streams.packing_of(raw)
            if path.endswith(".parquet"):
                return None if packing else Rows(parquet_row_count(raw))
        if packing and packing not in data_streams.UNPACKERS:
            return None
        with data_streams.open_decompressed(Path(path)) as (stream, _):
            return _count_in_stream(path, stream, None if packing else size)
    except UnreadableError as err:
        return Rows(problem=f"{err.where} of `{path}` {err}" if err.where else f"`{path}` {err}")
    except TooLargeError:
        return None


def _count_in_stream(path: str, stream: IO[bytes], size: int | None) -> Rows | None:
    """Return the rows of a stream, which holds `size` bytes (None: not known, as the file is packed). Raises
    UnreadableError for rows that LLaMA-Factory cannot load, and TooLargeError for a row beyond the reading limits."""
    kind = Path(path).suffix[1:]
    data = stream.read(_MAX_WHOLE_BYTES[kind] + 1)
    if len(data) <= _MAX_WHOLE_BYTES[kind]:
        rows = [row for _, row in _READERS[kind](io.BytesIO(data))]
        return Rows(len(rows), columns=frozenset().union(*rows), head=tuple(rows[:_HEAD_ROWS])) if rows else Rows()
    head = _first_rows(kind, data[:_HEAD_BYTES])
    row_start = _row_start(kind, data)
    most = _MAX_LINES_BYTES if row_start else _MAX_PARSED_BYTES
    left = min(most, _MAX_LINES * len(data) // (data.count(b"\n") or 1)) - len(data)
    held = io.BytesIO()  # whose bytes are held once, not twice as where bytes are added up
    held.write(data)
    while left > 0 and (part := stream.read(min(left, _HEAD_BYTES))):
        left -= held.write(part)
    data = held.getvalue()
    exact = not stream.read(1)
    if not head or not (exact or size):  # one row of all that was read; or how much is left is not known
        return None
    if not exact and (row_start or kind == "csv"):
        data = data[: data.rfind(b"\n") + 1] or data
    number, share = _count_in_bytes(kind, data, row_start)
    if exact and share < 1 and number < _MAX_VALUES:  # a value cannot be parsed; the reader says why
        return Rows(sum(1 for _ in _READERS[kind](io.BytesIO(data))), head=head)
    if exact and share == 1:
        return Rows(number, head=head)
    whole = len(data) if exact else size or 0
    return Rows(round(number / share * whole / len(data)), False, head=head) if number else None


def _first_rows(kind: str, data: bytes) -> tuple[Mapping[str, Any], ...]:
    """Return the rows at the beginning of a file, of which `data` is a part. Its end, in the middle of a row, is no
    problem of the file."""
    rows: list[Mapping[str, Any]] = []
    end = data.rfind(b"\n") + 1 or len(data)
    quotes = data.count(b'"', 0, end)
    while kind == "csv" and quotes % 2 and (start := data.rfind(b"\n", 0, end - 1) + 1):
        quotes -= data.count(b'"', start, end)  # the end lies between quotation marks
        end = start
    try:
        for _, row in _READERS[kind](io.BytesIO(data[:end])):
            rows.append(row)
    except UnreadableError:
        pass
    return tuple(rows[:_HEAD_ROWS])


def _row_start(kind: str, data: bytes) -> bytes:
    """Return the bytes with which each row of a file begins, if rows begin on lines of their own; else no bytes. A line
    break stands in no JSON string, so it is always one between values."""
    if kind in ("csv", "txt"):
        return b"\n" if kind == "txt" else b""
    if start := _LIST_START.match(data):
        text = data[:_HEAD_BYTES].decode("utf-8", "ignore")
        ends = _value_ends(text)
        alike = ends and text.count(start[1].decode(), 0, ends[-1]) == len(ends)
        return start[1] if alike else b""
    line = data.removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
    return b"\n" if line.startswith(b"{") and len(_value_ends(line.decode("utf-8", "ignore"))) == 1 else b""


def _count_in_bytes(kind: str, data: bytes, row_start: bytes) -> tuple[int, float]:
    """Return the number of rows in the text of a file, and the share of the text in which they were counted: less than
    1 if a value cannot be parsed, or if there are very many. `row_start`: what `_row_start` returns."""
    if kind == "csv":
        return count_csv_rows(io.BytesIO(data)), 1
    if kind == "txt":
        return (len(data.splitlines()) if b"\r" in data else data.count(b"\n") + (not data.endswith(b"\n"))), 1
    if row_start == b"\n" and data.count(b"\n") > _MAX_LINES:
        filled = _BLANK_LINES.sub(b"\n", data)
        return filled.count(b"\n") + (not filled.endswith(b"\n")), 1
    if row_start:
        rows = data.count(row_start) if row_start != b"\n" else sum(not line.isspace() for line in io.BytesIO(data))
        return rows, 1
    text = data.decode("utf-8-sig", "replace")
    ends = _value_ends(text)
    end, closing = (ends[-1] if ends else 0), "]" if text[:64].lstrip().startswith("[") else ""
    if len(ends) < _MAX_VALUES and text[end:].strip() == closing:
        return len(ends), 1
    return len(ends), max(min(end, len(text) - 1), 1) / len(text)


def _value_ends(text: str) -> list[int]:
    """Return where each of the JSON values ends that follow each other in a text or in a list, up to the first that
    cannot be parsed, and of a limited number."""
    decode, ends = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode, list[int]()
    position = text.find("[") + 1 if text[:64].lstrip().startswith("[") else 0
    try:
        while len(ends) < _MAX_VALUES:
            _, position = decode(text, _GAP.match(text, position).end())  # type: ignore[union-attr]
            ends.append(position)
    except (ValueError, RecursionError):
        pass
    return ends
