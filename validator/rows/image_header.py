"""Width and height of an image from the first bytes of its file, without decoding it. PNG, JPEG, GIF, BMP, WebP, TIFF
and Netpbm are read, the kinds that data sets of images mostly have.

Sizes are those that Pillow gives, by which LLaMA-Factory resizes: the EXIF orientation of a photo is not applied."""

from __future__ import annotations

import re
import struct
from struct import unpack, unpack_from
from typing import IO, NamedTuple

from validator.recipe import safe_read

HEAD_BYTES = 16 << 10  # bytes in which the size stands, in all files but JPEG with large metadata and TIFF
_MAX_SEGMENTS = 500  # of a JPEG file before its frame; photos have some ten
_MAX_TIFF_FIELDS = 500
_NETPBM = re.compile(rb"P[1-6]\s+(?:#[^\n]*\n\s*)*(\d{1,7})\s+(?:#[^\n]*\n\s*)*(\d{1,7})\s")


class ImageSize(NamedTuple):
    """Size of an image in pixels."""

    width: int
    height: int


def image_size(stream: IO[bytes]) -> ImageSize | None:
    """Return the size of the image in a file; None if the file is of another kind, or too short to tell. `stream`: the
    file, open at its beginning. At most a few hundred short reads are made, whatever the file holds."""
    head = stream.read(HEAD_BYTES)
    try:
        found = _size_from_head(head) or _size_from_file(stream, head)
    except (struct.error, IndexError, ValueError):
        return None
    return found if found and found.width > 0 and found.height > 0 else None


def _size_from_head(head: bytes) -> ImageSize | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return ImageSize(*unpack_from(">II", head, 16))
    if head.startswith((b"GIF87a", b"GIF89a")):
        return ImageSize(*unpack_from("<HH", head, 6))
    if head.startswith(b"BM"):
        return _bmp_size(head)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_size(head)
    if netpbm := _NETPBM.match(head):
        return ImageSize(int(netpbm[1]), int(netpbm[2]))
    return None


def _size_from_file(stream: IO[bytes], head: bytes) -> ImageSize | None:
    """Return the size of an image whose size may stand far from the beginning of its file."""
    if head.startswith(b"\xff\xd8\xff"):
        return _jpeg_size(stream)
    if head.startswith((b"II*\0", b"MM\0*")):
        return _tiff_size(stream, "<" if head.startswith(b"II") else ">")
    return None


def _bmp_size(head: bytes) -> ImageSize:
    """Return the size in a BMP header. OS/2's old header has 12 bytes and short numbers; a negative height says that
    the rows begin at the top."""
    if unpack_from("<I", head, 14)[0] == 12:
        return ImageSize(*unpack_from("<HH", head, 18))
    width, height = unpack_from("<ii", head, 18)
    return ImageSize(width, abs(height))


def _webp_size(head: bytes) -> ImageSize | None:
    """Return the size in a WebP file of any of its three forms: extended, lossless, lossy."""
    form = head[12:16]
    if form == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") for at in (24, 27))
        return ImageSize(width + 1, height + 1) if len(head) >= 30 else None
    if form == b"VP8L":
        bits = unpack_from("<I", head, 21)[0]
        return ImageSize((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if form == b"VP8 ":
        width, height = unpack_from("<HH", head, 26)
        return ImageSize(width & 0x3FFF, height & 0x3FFF)
    return None


def _jpeg_size(stream: IO[bytes]) -> ImageSize | None:
    """Return the size in the first frame header of a JPEG file. The segments before it, which may be large, are skipped
    unread."""
    stream.seek(2)
    for _ in range(_MAX_SEGMENTS):
        byte = stream.read(1)
        while byte and byte != b"\xff":  # bytes between segments, which decoders skip, too
            byte = stream.read(1)
            if stream.tell() > 1 << 20:
                return None
        while byte == b"\xff":
            byte = stream.read(1)
        marker = byte[0]
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a segment
            continue
        length = unpack(">H", stream.read(2))[0]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            _, height, width = unpack(">BHH", stream.read(5))
            return ImageSize(width, height)
        if marker == 0xDA or length < 2:  # pixels before any frame header
            return None
        stream.seek(length - 2, 1)
    return None


def _tiff_size(stream: IO[bytes], order: str) -> ImageSize | None:
    """Return the size in the first directory of a TIFF file. `order`: its byte order, as `struct` writes it."""
    stream.seek(4)
    stream.seek(unpack(f"{order}I", stream.read(4))[0])
    sides: dict[int, int] = {}
    for _ in range(min(unpack(f"{order}H", stream.read(2))[0], _MAX_TIFF_FIELDS)):
        tag, kind, _, value = unpack(f"{order}HHI4s", stream.read(12))
        if tag in (256, 257):  # ImageWidth, ImageLength; 3 is a short number, 4 a long one
            sides[tag] = unpack_from(f"{order}H" if kind == 3 else f"{order}I", value)[0]
    return ImageSize(sides[256], sides[257]) if len(sides) == 2 else None


def is_no_image(head: bytes) -> str:
    """Return what a file is that holds no image although data name it as one, as text for a message: an empty file, a
    Git LFS pointer, a web page. An empty string if it may be an image. `head`: its first bytes."""
    if not head:
        return "is empty"
    if safe_read.is_lfs_pointer(head):
        return safe_read.LFS_POINTER_REASON
    return "is a web page, not an image" if re.match(rb"\s*<(!doctype )?html\b", head, re.I) else ""


_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*")


def has_known_beginning(head: bytes) -> bool:
    """True if a file begins as an image of a kind whose size is read here. `head`: its first bytes."""
    return head.startswith(_BEGINNINGS) or (head.startswith(b"RIFF") and head[8:12] == b"WEBP")


def end_mark(head: bytes) -> bytes:
    """Return the bytes near the end of a whole image of this kind; none if its kind has no such mark. `head`: its first
    bytes. Without the mark a JPEG or PNG file is cut off: Pillow then stops at "image file is truncated"."""
    return b"\xff\xd9" if head.startswith(b"\xff\xd8\xff") else b"IEND" if head.startswith(b"\x89PNG") else b""
