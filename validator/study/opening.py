"""The one way into a data file: a regular file, opened without waiting, and unpacked on the way."""

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
from typing import IO, NamedTuple, cast

from validator.read import disk
from validator.study.values import UnreadableError

_CHUNK = 1 << 20
# What the libraries raise for packed bytes that cannot be unpacked; zipfile has no class of its own for all of it.
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile)


class Packing(NamedTuple):
    """A way to pack a file, known by its first bytes."""

    name: str
    begins: bytes
    unpack: Callable[[IO[bytes]], IO[bytes]] | None


def _member(packed: IO[bytes]) -> IO[bytes]:
    """The one file of an archive."""
    try:
        archive = zipfile.ZipFile(packed)
        members = [member for member in archive.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise UnreadableError(0, f"is an archive of {len(members):,} files; unpack it, and name the folder")
        return archive.open(members[0])
    except (NotImplementedError, RuntimeError, ValueError) as err:  # an unknown method, a password, odd sizes
        raise zipfile.BadZipFile(str(err)) from None


# What the datasets library unpacks whatever the file is called (utils/file_utils.py,
# _get_extraction_protocol_with_magic_number); three of them only where a further library is installed, or never.
_PACKINGS = (
    Packing("gzip", b"\x1f\x8b", lambda packed: cast(IO[bytes], gzip.GzipFile(fileobj=packed))),
    Packing("bzip2", b"BZh", bz2.BZ2File),
    Packing("xz", b"\xfd7zXZ\x00", lzma.LZMAFile),
    Packing("zip", b"PK\x03\x04", _member),
    Packing("zstandard", b"\x28\xb5\x2f\xfd", None),
    Packing("lz4", b"\x04\x22\x4d\x18", None),
    Packing("rar", b"Rar!", None),
)


@contextlib.contextmanager
def plain(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a regular file as they are. Raises UnreadableError for anything else, also while it is read."""
    if disk.kind(path) not in ("file", None):
        raise UnreadableError(0, missing(path))
    try:
        # It may have become something else since: such is opened without waiting for the other end.
        descriptor = disk.descriptor(path)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableError(0, missing(path))
            yield stream
    except (OSError, ValueError) as err:
        raise UnreadableError(0, f"cannot be read: {getattr(err, 'strerror', None) or err}".lower()) from None


def missing(path: Path) -> str:
    """Why there is no file of data at a path."""
    kind = disk.kind(path)
    if kind in (None, "folder"):
        return "is a folder that holds no file" if kind else "does not exist"
    return f"is a {kind}, and data are read more than once; write them to a file"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked as the datasets library does whatever the file is called. Raises UnreadableError, also
    while it is read."""
    with plain(path) as stream:
        packing = packed(stream)
        if packing is None:
            yield stream
            return
        if packing.unpack is None:
            raise UnreadableError(0, f"is packed with {packing.name}, which takes a library of its own; unpack it")
        try:
            with io.BufferedReader(cast(io.RawIOBase, packing.unpack(stream)), _CHUNK) as unpacked:
                yield cast(IO[bytes], unpacked)
        except (*_DAMAGE, OSError) as err:
            raise UnreadableError(0, f"is a damaged {packing.name} file ({err})") from None


def packed(stream: IO[bytes]) -> Packing | None:
    """How the file is packed; the stream stands at its beginning."""
    head = stream.read(8)
    stream.seek(0)
    return next((one for one in _PACKINGS if head.startswith(one.begins)), None)


def size(path: Path, most: int) -> int:
    """Bytes of a file, of a packed one those that come out of it; no more than `most` are looked at. Raises
    UnreadableError."""
    with opened(path) as stream:
        if isinstance(stream, io.BufferedReader) and isinstance(stream.raw, io.FileIO):
            return min(path.stat().st_size, most)
        total = 0
        while total < most and (part := stream.read(_CHUNK)):
            total += len(part)
        return min(total, most)
