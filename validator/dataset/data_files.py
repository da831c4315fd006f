"""The files of a data set: regular files of one type, opened without waiting and decompressed on the way."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from validator.recipe import safe_read
from validator.rows.reading_limits import UnreadableError
from validator.run import dataset_registry

_CHUNK = 1 << 20
# What the libraries raise for packed bytes that cannot be unpacked; zipfile has no class of its own for all of it.
_DAMAGE_ERRORS = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile)


def _open_archive_member(packed: IO[bytes]) -> IO[bytes]:
    """The one file of an archive."""
    try:
        archive = zipfile.ZipFile(packed)
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise UnreadableError(0, f"is an archive of {len(members):,} files; unpack it, and name the folder")
        return archive.open(members[0])
    except (NotImplementedError, RuntimeError, ValueError) as err:  # an unknown method, a password, odd sizes
        raise zipfile.BadZipFile(str(err)) from None


# Of the packed files that the datasets library unpacks, it needs a further library for the rest.
_UNPACKERS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    "gzip": lambda packed: cast(IO[bytes], gzip.GzipFile(fileobj=packed)),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zip": _open_archive_member,
}


@contextlib.contextmanager
def open_raw(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a regular file as they are. Raises UnreadableError for anything else, also while it is read."""
    if safe_read.path_kind(path) not in ("file", None):
        raise UnreadableError(0, no_data_file_reason(path))
    try:
        # It may have become something else since: such is opened without waiting for the other end.
        descriptor = safe_read.open_without_waiting(path)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableError(0, no_data_file_reason(path))
            yield stream
    except (OSError, ValueError) as err:
        raise UnreadableError(0, f"cannot be read: {getattr(err, 'strerror', None) or err}".lower()) from None


def no_data_file_reason(path: Path) -> str:
    """Return why there is no file of data at a path."""
    kind = safe_read.path_kind(path)
    if kind in (None, "folder"):
        return "is a folder that holds no file" if kind else "does not exist"
    return f"is a {kind}, and data are read more than once; write them to a file"


@contextlib.contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked as the datasets library does whatever the file is called. Raises UnreadableError, also
    while it is read."""
    with open_raw(path) as stream:
        head = stream.read(8)
        stream.seek(0)
        marks = dataset_registry.PACKED_FILE_MARKS
        name = next((name for name, mark in marks.items() if head.startswith(mark)), "")
        if not name:
            yield stream
            return
        if name not in _UNPACKERS:
            raise UnreadableError(0, f"is packed with {name}, which takes a library of its own; unpack it")
        try:
            with io.BufferedReader(cast(io.RawIOBase, _UNPACKERS[name](stream)), _CHUNK) as unpacked:
                yield cast(IO[bytes], unpacked)
        except (*_DAMAGE_ERRORS, OSError) as err:
            raise UnreadableError(0, f"is a damaged {name} file ({err})") from None


def decompressed_size(path: Path, most: int) -> int:
    """Return the bytes of a file, unpacked, or `most` if there are more. Raises UnreadableError."""
    with open_decompressed(path) as stream:
        if isinstance(stream, io.BufferedReader) and isinstance(stream.raw, io.FileIO):
            return min(path.stat().st_size, most)
        total = 0
        while total < most and (part := stream.read(_CHUNK)):
            total += len(part)
        return min(total, most)
