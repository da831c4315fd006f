"""Opens the files of a data set without blocking, decompresses them, and reads them row by row, whatever their type."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import orjson

from validator.dataset import arrow_rows
from validator.errors import RecipeError
from validator.recipe import safe_read
from validator.rows import reading_limits
from validator.rows.csv_rows import read_csv, read_text
from validator.rows.json_rows import Rows, read_json, read_json_lines
from validator.rows.reading_limits import UnreadableError
from validator.run import dataset_registry

_CHUNK = 1 << 20  # bytes that are read at once
_FIRST_LINE_BYTES = 1 << 20  # a first line of more bytes is not taken for JSON
# What the libraries raise for bytes that cannot be unpacked.
_DAMAGE_ERRORS = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile)


def _open_archive_member(packed: IO[bytes]) -> IO[bytes]:
    """Open the only file in a zip archive. Raises UnreadableError if the archive holds several files or none, and
    BadZipFile if the archive cannot be unpacked."""
    try:
        archive = zipfile.ZipFile(packed)
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise UnreadableError(0, f"is an archive of {len(members):,} files; unpack it, and name the folder")
        return archive.open(members[0])
    except (NotImplementedError, RuntimeError, ValueError) as err:  # an unknown method, a password, odd sizes
        raise zipfile.BadZipFile(str(err)) from None


# The datasets library unpacks more kinds of files, but needs a further package for each.
_UNPACKERS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    "gzip": lambda packed: cast(IO[bytes], gzip.GzipFile(fileobj=packed)),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zip": _open_archive_member,
}


@contextlib.contextmanager
def open_raw(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file without decompressing it. Raises UnreadableError if the path is no regular file, or if an
    error occurs while the file is read."""
    if safe_read.path_kind(path) not in ("file", None):
        raise UnreadableError(0, no_data_file_reason(path))
    try:
        # It may have become a pipe since; that would be waited for.
        descriptor = safe_read.open_without_waiting(path)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableError(0, no_data_file_reason(path))
            yield stream
    except (OSError, ValueError) as err:
        raise UnreadableError(0, f"cannot be read: {getattr(err, 'strerror', None) or err}".lower()) from None


def no_data_file_reason(path: Path) -> str:
    """Return the reason why a path that is not a regular file cannot be used as a data file, as the end of a message:
    the path does not exist, is an empty folder, or is a pipe or device."""
    kind = safe_read.path_kind(path)
    if kind in (None, "folder"):
        return "is a folder that holds no file" if kind else "does not exist"
    return f"is a {kind}, and data are read more than once; write them to a file"


@contextlib.contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file and decompress it as the datasets library does. The format is recognized by the first bytes, not by
    the file's name. Raises UnreadableError if the format is not supported, the file is damaged, or an error occurs
    while the file is read."""
    with open_raw(path) as stream:
        head = stream.read(8)
        stream.seek(0)
        marks = dataset_registry.PACKED_FILE_MARKS
        name = next((name for name, mark in marks.items() if head.startswith(mark)), "")
        if not name:
            yield stream
            return
        if name not in _UNPACKERS:
            raise UnreadableError(
                0, f"is packed with {name}, for which the datasets library needs another package; unpack it"
            )
        try:
            with io.BufferedReader(cast(io.RawIOBase, _UNPACKERS[name](stream)), _CHUNK) as unpacked:
                yield cast(IO[bytes], unpacked)
        except (*_DAMAGE_ERRORS, OSError) as err:
            raise UnreadableError(0, f"is a damaged {name} file ({err})") from None


def decompressed_size(path: Path, limit: int) -> int:
    """Return the size of a file in bytes after decompression. Reading stops at `limit`, which is then the result.
    Raises UnreadableError if the file cannot be read."""
    with open_decompressed(path) as stream:
        if isinstance(stream, io.BufferedReader) and isinstance(stream.raw, io.FileIO):
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
    """Yield the number and the content of each row in a file. Numbers count from 1. They count lines in a file with one
    row on each line, and rows in any other file. `span` (start and end in bytes) restricts reading to a part of a file
    of JSON lines; numbers then count from the start of that part. Raises UnreadableError if a row cannot be read, and
    TooLargeError if a row exceeds the size limits."""
    try:
        with open_decompressed(path) as stream:
            yield from read_json_lines(stream, orjson.loads, span) if span else _READERS[path.suffix[1:]](stream)
    except RecipeError as err:
        raise type(err)(f"`{path}`: {err}") from None


def first_rows(paths: Iterable[Path], number: int) -> list[dict[str, Any]]:
    """Return the first rows of all files together: at most `number`, and fewer if the rows are large. Reading stops at
    the first row that cannot be read. Files of an unknown type are skipped. Raises UnreadableError if not even the
    first row can be read."""
    rows = (row for path in paths if path.suffix[1:] in _READERS for _, row in read_rows(path))
    return next(reading_limits.blocks(rows, number, reading_limits.approximate_size), [])


def count_rows(path: Path) -> int:
    """Return the number of rows in a file. A Parquet file states the number; other files are read to their end. Raises
    UnreadableError if the file cannot be read."""
    if path.suffix != ".parquet":
        return sum(1 for _ in read_rows(path))
    with open_decompressed(path) as stream:
        return arrow_rows.parquet_row_count(stream)


_READERS: dict[str, Callable[[IO[bytes]], Rows]] = {
    "json": partial(read_json, parse_line=orjson.loads), "jsonl": partial(read_json, parse_line=orjson.loads),
    "csv": read_csv, "txt": read_text,
    "parquet": partial(arrow_rows.read_table, "parquet"), "arrow": partial(arrow_rows.read_table, "arrow"),
}  # fmt: skip
