"""Limits on how much of a data set is read and held in memory at the same time, so that a small file takes less than
300 MiB and 10 seconds whatever it contains, and a large one less than 1 GiB. Also the errors for files and rows that
are beyond a limit or cannot be read."""

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
# Commas and brackets of one row in JSON: an upper limit on its values, each of which takes up to 200 bytes when it is
# read, and 3 bytes in the file.
MAX_ROW_SEPARATORS = 1_000_000
# Bytes that Arrow may take for one batch of a table, in which compressed and repeated values are expanded: the fewest
# and the most, and between them four times the size of the file.
MIN_ARROW_BATCH_BYTES, MAX_ARROW_BATCH_BYTES = 96 << 20, 512 << 20
# Bytes that a few rows of a batch may take as dictionaries, before they are converted one by one.
MAX_PYLIST_BYTES = 48 << 20
# What is read of a table or a packed file, whose size says little about its contents: this many at least, and more of a
# larger file, by its size in bytes. Real data take at least 8 bytes a row on disk.
_PACKED_LIMITS = {"rows": (250_000, 1 / 8), "lines": (2_000_000, 1), "bytes": (512 << 20, 256)}


class TooLargeError(RecipeError):
    """A file that is beyond the limits of this module and is not read. LLaMA-Factory may be able to read it."""


def in_mebibytes(size: int) -> str:
    """Return a number of bytes as text in MiB, such as "8 MiB"."""
    return f"{size >> 20} MiB"


def row_too_large(number: int, unit: str = "line") -> TooLargeError:
    """Return the error for a row of more than MAX_ROW_BYTES. `number`: the line at which it begins, or, if `unit` is
    "row", the number of the row."""
    found = f"{unit} {number:,} is larger than {in_mebibytes(MAX_ROW_BYTES)}"
    return TooLargeError(f"{found}, the most that is read; split it, or take it out")


def require_few_separators(count: int, number: int, unit: str = "line") -> None:
    """Raise TooLargeError if a row has more than MAX_ROW_SEPARATORS commas and brackets, of which `count` were found.
    `number` and `unit`: as for `row_too_large`."""
    if count > MAX_ROW_SEPARATORS:
        found = f"{unit} {number:,} has more than {MAX_ROW_SEPARATORS:,} commas and brackets"
        raise TooLargeError(f"{found}, the most that is read; split it, or take it out")


class PackedLimit:
    """Limits how much is read of a table or a packed file of `size` bytes, and counts what was read. `batch_bytes`: the
    bytes that Arrow may take for one batch of the table."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._read = dict.fromkeys(_PACKED_LIMITS, 0)
        self.batch_bytes = min(max(4 * size, MIN_ARROW_BATCH_BYTES), MAX_ARROW_BATCH_BYTES)

    def add(self, unit: str, number: int) -> None:
        """Count what was read. `unit`: rows, lines or bytes. Raises TooLargeError beyond the limit."""
        fewest, per_byte = _PACKED_LIMITS[unit]
        most = max(fewest, int(per_byte * self._size))
        if self._read[unit] + number > most:
            amount = in_mebibytes(most) if unit == "bytes" else f"{most:,} {unit}"
            raise TooLargeError(
                f"holds more than {amount} in {self._size:,} bytes; {self._read['rows']:,} rows were read, and the "
                "rest was not; save it as JSON lines, not packed, to have all of it read"
            )
        self._read[unit] += number


def batch_too_large(number: int, most: int) -> TooLargeError:
    """Return the error for a batch of rows that takes more than `most` bytes. `number`: the number of the batch's first
    row."""
    return TooLargeError(
        f"rows from {number:,} on take more than {in_mebibytes(most)} unpacked, the most that is read; "
        "write smaller row groups, or take out what is huge"
    )


def too_many_columns(count: int) -> TooLargeError:
    """Return the error for rows with more than MAX_COLUMNS columns."""
    count_message = f"the rows have {count:,} columns or more, and at most {MAX_COLUMNS:,} are read"
    return TooLargeError(f"{count_message}; each key of a row is a column, so write keys that vary as text")


def used_memory() -> int | None:
    """Return the bytes of memory that this process uses for its data. Return None if the system does not say; only
    Linux does."""
    try:
        return int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    except (OSError, IndexError, ValueError):
        return None


@contextmanager
def memory_limit(most: int, used: int | None = None) -> Iterator[None]:
    """Limit the memory of this process inside of the `with` block (RLIMIT_DATA). `most`: the bytes that it may use in
    addition to `used`; without `used`, in addition to its present use. Only Linux has the limit."""
    used = used or used_memory()
    if used is None:
        yield
        return
    import resource  # which Windows lacks

    before = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (used + most, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def approximate_size(value: object) -> int:
    """Return the approximate bytes of a value that was read from JSON: its characters, and 50 bytes for each item."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        total += 50 + (len(one) if isinstance(one, (str, bytes)) else 0)
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            large = [item for item in one if isinstance(item, (str, bytes, dict, list))]
            left += large
            total += 50 * (len(one) - len(large))
    return total


def blocks(items: Iterable[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in lists of at most `most` items. A list ends early if the `size` of its items together exceeds
    MAX_BLOCK_BYTES. If the iteration raises UnreadableError, the items before the error are yielded first."""
    block, weight = list[T](), 0
    try:
        for item in items:
            block.append(item)
            weight += size(item)
            if len(block) == most or weight > MAX_BLOCK_BYTES:
                yield block
                block, weight = [], 0
    except UnreadableError:
        if block:
            yield block
        raise
    if block:
        yield block


TOO_DEEP = f"is nested deeper than {MAX_NESTING} levels, the most that Arrow holds"


class UnreadableError(Exception):
    """A file, or one of its rows, that LLaMA-Factory cannot load. `line`: the line at which the row begins, from 1; 0
    for a table, and if the file as a whole cannot be loaded. `row`: the number of the row, where a line may hold
    several or none."""

    def __init__(self, line: int, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.line, self.row = line, row

    @property
    def where(self) -> str:
        """The row as words for a message, such as "line 12" or "row 12"; empty for a whole file."""
        return f"row {self.row}" if self.row else f"line {self.line}" if self.line else ""
