"""Rows of a data file by its type: JSON, CSV, text, Parquet or Arrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

from validator.dataset import arrow_rows
from validator.dataset.data_files import open_decompressed
from validator.dataset.json_rows import Rows, read_json, read_json_lines
from validator.errors import RecipeError
from validator.rows import reading_limits
from validator.rows.csv_rows import read_csv
from validator.rows.reading_limits import UnreadableError


def read_rows(path: Path, span: tuple[int, int] | None = None) -> Rows:
    """Yield the rows of a file with their numbers: of the line in files of lines, else of the row. `span` is the part
    of a file of lines to read, in bytes; numbers then count from its beginning. Raises UnreadableError, and RecipeError
    for what is not looked into."""
    try:
        with open_decompressed(path) as stream:
            yield from read_json_lines(stream, span) if span else _READERS[path.suffix[1:]](stream)
    except RecipeError as err:
        raise type(err)(f"`{path}`: {err}") from None


def first_rows(paths: Iterable[Path], number: int) -> list[dict[str, Any]]:
    """Return up to `number` rows of all files together, fewer if they are large, up to one that cannot be read; files
    of no known type have none. Raises UnreadableError if not even the first row can be read."""
    rows = (row for path in paths if path.suffix[1:] in _READERS for _, row in read_rows(path))
    return next(reading_limits.blocks(rows, number, reading_limits.approximate_size), [])


def count_rows(path: Path) -> int:
    """How many rows a file has: what a parquet file says, else the rows that can be read. Raises UnreadableError."""
    if path.suffix != ".parquet":
        return sum(1 for _ in read_rows(path))
    with open_decompressed(path) as stream:
        return arrow_rows.parquet_row_count(stream)


def _read_text(stream: IO[bytes]) -> Rows:
    """Yield each line as a row, blank ones too."""
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
