"""Opens data files: regular files only, without waiting, and unpacked as the datasets library unpacks them."""

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

_CHUNK = 1 << 20  # bytes that are read at once
# First bytes of packed files. The datasets library unpacks them whatever they are called (utils/file_utils.py,
# _get_extraction_protocol_with_magic_number).
_PACKED_FILE_MARKS = {
    "gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ\x00", "zip": b"PK\x03\x04",
    "zstandard": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18", "rar": b"Rar!",
}  # fmt: skip
# What the libraries raise for bytes that cannot be unpacked.
_DAMAGE_ERRORS = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile)


def _open_archive_member(packed: IO[bytes]) -> IO[bytes]:
    """Open the only file in a zip archive. Raises UnreadableError if the archive holds several files or none, and
    BadZipFile if the archive cannot be unpacked."""
    try:
        archive = zipfile.ZipFile(packed)
        members = [member for member in archive.infolist() if not member.filename.endswith("/")]
        if len(members) != 1:
            raise UnreadableError(0, f"is an archive of {len(members):,} files; unpack it, and name the folder")
        return archive.open(members[0])
    except (NotImplementedError, RuntimeError, ValueError) as err:  # an unknown method, a password, odd sizes
        raise zipfile.BadZipFile(str(err)) from None


# The datasets library unpacks more kinds of files, but needs a further package for each.
UNPACKERS: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    "gzip": lambda packed: cast(IO[bytes], gzip.GzipFile(fileobj=packed)),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
    "zip": _open_archive_member,
}


def packing_of(stream: IO[bytes]) -> str:
    """Return how a file is packed, such as gzip, judged by its first bytes; an empty string if it is not packed."""
    head = stream.read(8)
    stream.seek(0)
    return next((name for name, mark in _PACKED_FILE_MARKS.items() if head.startswith(mark)), "")


@contextlib.contextmanager
def open_raw(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file without decompressing it. Raises UnreadableError if the path is no regular file, if the
    file is a Git LFS pointer, or if an error occurs while it is read."""
    if safe_read.path_kind(path) not in ("file", None):
        raise UnreadableError(0, no_data_file_reason(path))
    try:
        # It may have become a pipe since; that would be waited for.
        descriptor = safe_read.open_without_waiting(path)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableError(0, no_data_file_reason(path))
            if safe_read.is_lfs_pointer(stream.read(64)):
                raise UnreadableError(0, safe_read.LFS_POINTER_REASON)
            stream.seek(0)
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
        name = packing_of(stream)
        if not name:
            yield stream
            return
        if name not in UNPACKERS:
            raise UnreadableError(
                0, f"is packed with {name}, for which the datasets library needs another package; unpack it"
            )
        try:
            with io.BufferedReader(cast(io.RawIOBase, UNPACKERS[name](stream)), _CHUNK) as unpacked:
                yield cast(IO[bytes], unpacked)
        except (*_DAMAGE_ERRORS, OSError) as err:
            raise UnreadableError(0, f"is a damaged {name} file ({err})") from None
