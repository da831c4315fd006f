"""Reads the files of a data set row by row, whatever their type."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

import orjson

from validator.dataset import arrow_rows
from validator.errors import RecipeError
from validator.rows import reading_limits
from validator.rows.csv_rows import read_csv, read_text
from validator.rows.json_rows import Rows, read_json, read_json_lines
from validator.rows.reading_limits import PackedLimit
from validator.run.data_streams import open_decompressed, open_raw

_CHUNK = 1 << 20  # bytes that are read at once
_FIRST_LINE_BYTES = 1 << 20  # a first line of more bytes is not taken for JSON


def decompressed_size(path: Path, limit: int) -> int:
    """Return the size of a file in bytes after decompression. Reading stops at `limit`, which is then the result.
    Raises UnreadableError if the file cannot be read."""
    with open_decompressed(path) as (stream, packed):
        if packed is None:
            return min(path.stat().st_size, limit)
        total = 0
        while total < limit and (part := stream.read(_CHUNK)):
            total += len(part)
        return min(total, limit)


def is_json_lines(path: Path) -> bool:
    """Return True if a file looks like uncompressed JSON with one object on each line, judged by its suffix and its
    first line. Such a file can be read in parts."""
    if path.suffix not in (".json", ".jsonl"):
        return False
    with open_raw(path) as stream:
        head = stream.read(64).removeprefix(codecs.BOM_UTF8).lstrip()
        return head.startswith(b"{") and stream.readline(_FIRST_LINE_BYTES).rstrip().endswith(b"}")


def read_rows(path: Path, span: tuple[int, int] | None = None) -> Rows:
    """Yield the content of each row in a file with the line at which the row begins, from 1; the line is 0 in a table.
    `span` (start and end in bytes) restricts reading to a part of a file of JSON lines; lines then count from the start
    of that part. Raises UnreadableError if a row cannot be read, and TooLargeError if a row, or what was unpacked,
    exceeds the reading limits."""
    kind = path.suffix[1:]
    try:
        with open_decompressed(path) as (stream, limit):
            if kind in arrow_rows.KINDS:
                yield from arrow_rows.read_table(kind, stream, limit or PackedLimit(path.stat().st_size))
            elif limit is None:
                yield from read_json_lines(stream, orjson.loads, span) if span else _READERS[kind](stream)
            else:
                for row in _READERS[kind](stream):
                    limit.add("rows", 1)
                    yield row
    except RecipeError as err:
        raise type(err)(f"`{path}`: {err}") from None


def first_rows(paths: Iterable[Path], number: int) -> list[dict[str, Any]]:
    """Return the first rows of all files together: at most `number`, and fewer if the rows are large. Reading stops at
    the first row that cannot be read. Files of an unknown type are skipped. Raises UnreadableError if not even the
    first row can be read."""
    kinds = (*_READERS, *arrow_rows.KINDS)
    rows = (row for path in paths if path.suffix[1:] in kinds for _, row in read_rows(path))
    return next(reading_limits.blocks(rows, number, reading_limits.approximate_size), [])


def count_rows(path: Path) -> int:
    """Return the number of rows in a file, which is read to its end. Raises UnreadableError if the file cannot be
    read."""
    return sum(1 for _ in read_rows(path))


_READERS: dict[str, Callable[[IO[bytes]], Rows]] = {
    "json": partial(read_json, parse_line=orjson.loads), "jsonl": partial(read_json, parse_line=orjson.loads),
    "csv": read_csv, "txt": read_text,
}  # fmt: skip
