"""Opens data files: regular files only, without waiting, and unpacked as the datasets library unpacks them."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from validator.recipe import safe_read
from validator.rows.reading_limits import PackedLimit, UnreadableError

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
    try:
        with safe_read.open_file(path) as stream:
            if safe_read.is_lfs_pointer(stream.read(64)):
                raise UnreadableError(0, safe_read.LFS_POINTER_REASON)
            stream.seek(0)
            yield stream
    except safe_read.NoFileError:
        raise UnreadableError(0, no_data_file_reason(path)) from None
    except (OSError, ValueError) as err:
        raise UnreadableError(0, f"cannot be read: {getattr(err, 'strerror', None) or err}".lower()) from None


def no_data_file_reason(path: Path) -> str:
    """Return the reason why a path that is not a regular file cannot be used as a data file, as the end of a message:
    the path does not exist, is an empty folder, or is a pipe or device."""
    kind = safe_read.path_kind(path)
    if kind in (None, "folder"):
        return "is a folder that holds no file" if kind else "does not exist"
    return f"is a {kind}, and data are read more than once; write them to a file"


class _UnpackedStream(io.RawIOBase):
    """The unpacked bytes of a packed file. Bytes and lines that are read, once or again, count towards `limit`."""

    def __init__(self, stream: IO[bytes], limit: PackedLimit) -> None:
        self._stream, self._limit = stream, limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer. Raises TooLargeError beyond the limit."""
        data = self._stream.read(len(buffer))
        self._limit.add("bytes", len(data))
        self._limit.add("lines", data.count(b"\n"))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, for which all before it has to be unpacked. Raises TooLargeError beyond the limit."""
        if whence == os.SEEK_SET and offset < self._stream.tell():
            self._stream.seek(0)
        offset += self._stream.tell() if whence == os.SEEK_CUR else 0
        while whence == os.SEEK_END or self._stream.tell() < offset:
            if not self.read(_CHUNK if whence == os.SEEK_END else min(_CHUNK, offset - self._stream.tell())):
                break
        return self._stream.tell()

    def tell(self) -> int:
        return self._stream.tell()


@contextlib.contextmanager
def open_decompressed(path: Path) -> Iterator[tuple[IO[bytes], PackedLimit | None]]:
    """Open a file and decompress it as the datasets library does. The format is recognized by the first bytes, not by
    the file's name. Also yield the limit to which bytes and lines of the file are unpacked; None if it is not packed.
    Raises UnreadableError if the format is not supported, the file is damaged, or an error occurs while the file is
    read, and TooLargeError beyond the limit."""
    with open_raw(path) as stream:
        name = packing_of(stream)
        if not name:
            yield stream, None
            return
        if name not in UNPACKERS:
            raise UnreadableError(
                0, f"is packed with {name}, for which the datasets library needs another package; unpack it"
            )
        try:
            limit = PackedLimit(os.fstat(stream.fileno()).st_size)
            with io.BufferedReader(_UnpackedStream(UNPACKERS[name](stream), limit), _CHUNK) as unpacked:
                yield cast(IO[bytes], unpacked), limit
        except (*_DAMAGE_ERRORS, OSError) as err:
            raise UnreadableError(0, f"is a damaged {name} file ({err})") from None
