"""Limits on what of a data set is read and held at once, so that reading takes less than a gibibyte of memory whatever
is in a file. Also the errors for files and rows that are beyond a limit or cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from validator.errors import RecipeError

T = TypeVar("T")

# Bytes of one row as text, unpacked: more than the longest context of any model. A row as dense as JSON allows
# (`[{},{},…`) takes 30 times as much when it is read.
MAX_ROW_BYTES = 8 << 20
# Bytes of rows that have been read and not yet counted.
MAX_BLOCK_BYTES = 4 << 20
# Rows of a data set that are kept. Of more, only every second, fourth … is kept and stands for those after it.
MAX_SCANNED_ROWS = 2 << 20
# Columns of a data set. The datasets library makes a column of every key that any row has.
MAX_COLUMNS = 10_000
# Levels of lists and objects in a row, the row itself among them: Arrow cannot describe more ("Recursion level in
# ArrowSchema struct exceeded", tried with pyarrow and datasets).
MAX_NESTING = 63
# Bytes that Arrow may take for one batch of a table, in which compressed and repeated values are expanded.
MAX_ARROW_BATCH_BYTES = 512 << 20
# Bytes that the rows of a batch may take as dictionaries; a batch that takes more is halved.
MAX_PYLIST_BYTES = 96 << 20


class TooLargeError(RecipeError):
    """A file that LLaMA-Factory may well read, but that is too large to be looked into."""


def in_mebibytes(size: int) -> str:
    """Return a number of bytes in words."""
    return f"{size >> 20} MiB"


def row_too_large(number: int) -> TooLargeError:
    """Return the error for a row of more than MAX_ROW_BYTES."""
    return TooLargeError(
        f"row {number:,} is larger than {in_mebibytes(MAX_ROW_BYTES)}, the most that is read; split it, or take it out"
    )


def batch_too_large(number: int) -> TooLargeError:
    """Return the error for rows that take more than MAX_ARROW_BATCH_BYTES."""
    return TooLargeError(
        f"rows from {number:,} on take more than {in_mebibytes(MAX_ARROW_BATCH_BYTES)} unpacked, "
        f"the most that is read; "
        "write smaller row groups, or take out what is huge"
    )


def too_many_columns(count: int) -> TooLargeError:
    """Return the error for rows with more than MAX_COLUMNS columns."""
    said = f"the rows have {count:,} columns or more, and at most {MAX_COLUMNS:,} are read"
    return TooLargeError(f"{said}; each key of a row is a column, so write keys that vary as text")


@contextmanager
def memory_limit(most: int) -> Iterator[None]:
    """Limit this process to `most` bytes beyond what it has now (RLIMIT_DATA, on Linux; elsewhere there is no
    limit)."""
    try:
        status = Path("/proc/self/status").read_text()
        held = int(status.partition("VmData:")[2].split()[0]) << 10
        import resource
    except (OSError, ImportError, IndexError, ValueError):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (held + most, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def approximate_size(value: object) -> int:
    """Return an estimate of the bytes of a value read from JSON: its characters, and 50 for each item."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        total += 50 + (len(one) if isinstance(one, (str, bytes)) else 0)
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
    return total


def blocks(items: Iterable[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in lists of `most`, of fewer if their sizes together exceed MAX_BLOCK_BYTES. Items before an
    UnreadableError are yielded before it is raised."""
    held, weight = list[T](), 0
    try:
        for item in items:
            held.append(item)
            weight += size(item)
            if len(held) == most or weight > MAX_BLOCK_BYTES:
                yield held
                held, weight = [], 0
    except UnreadableError:
        if held:
            yield held
        raise
    if held:
        yield held


TOO_DEEP = f"is nested deeper than {MAX_NESTING} levels, the most that Arrow holds"


class UnreadableError(Exception):
    """A file, or one of its rows, that LLaMA-Factory cannot load. `row` counts from 1; 0: the file as a whole."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
