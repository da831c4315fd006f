"""The files of images, videos and audio that a row names: their identity, and the sizes of images."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from validator.recipe import safe_read
from validator.rows import image_header
from validator.rows.converter import FatalRowError
from validator.rows.image_header import HEAD_BYTES, ImageSize

_REMEMBERED_FILES = 1 << 16  # a file that many rows name is read once


class MediaFile(NamedTuple):
    """A file of an image, video or sound. `content`: its path, or the bytes in a table. `size`: size of an image; None
    if it is not known. `no_image`: what is wrong with the file if it surely holds no image. `is_cut`: True if the file
    begins as an image and ends before its size, or without the mark that ends images of its kind."""

    content: str | bytes
    size: ImageSize | None = None
    no_image: str = ""
    is_cut: bool = False


def row_media_files(value: object, folder: str) -> Iterator[MediaFile]:
    """Yield the files in a row's value in a column of images, videos or audios. A file is given by its path, or, in
    tables, by a mapping of bytes and path. The frames of a video are files, too. `folder`: the folder to which paths
    are relative. LLaMA-Factory takes a path that does not exist there as it is (data/converter.py, _find_medias)."""
    if isinstance(value, str):
        inside = Path(folder, value)
        yield _media_at(inside if safe_read.path_kind(inside) == "file" else Path(value))
    elif isinstance(value, dict):
        yield _media_of_mapping(value)
    elif isinstance(value, list):
        for one in value:
            yield from row_media_files(one, folder)
    else:
        yield MediaFile(str(value), no_image="is neither a path nor an image")


def require_images(value: object, files: list[MediaFile]) -> None:
    """Raise FatalRowError if one of the files of a row's column of images is surely no image. `value`: the row's value
    in that column."""
    for number, file in enumerate(files):
        if file.no_image:
            path = value[number] if isinstance(value, list) and len(value) == len(files) else value
            raise FatalRowError(f"image `{path}` {file.no_image}" if isinstance(path, str) else
                                f"image {number + 1} {file.no_image}")  # fmt: skip


def _media_of_mapping(value: dict[Any, Any]) -> MediaFile:
    """Return the file in a mapping of bytes and path, as the datasets library writes images into tables."""
    data, path = value.get("bytes"), value.get("path")
    if isinstance(data, bytes):
        return _facts(data, BytesIO(data), len(data))
    if not isinstance(path, str):
        return MediaFile(b"", no_image="has neither bytes nor a path")
    exists = safe_read.path_kind(path) == "file"
    return _media_at(Path(path)) if exists else MediaFile(path, None, "does not exist")


def _media_at(path: Path) -> MediaFile:
    """Return the facts of the file at a path; the path alone if the file cannot be read."""
    try:
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode):
            return _read_media_file(path, facts.st_size, facts.st_mtime_ns)
    except (OSError, ValueError):
        pass
    return MediaFile(str(path))


@lru_cache(maxsize=_REMEMBERED_FILES)
def _read_media_file(path: Path, size: int, _changed: int) -> MediaFile:
    """Return the facts of a file of `size` bytes. Raises OSError or ValueError if it cannot be read."""
    with safe_read.open_file(path) as stream:
        return _facts(str(path), stream, size)


def _facts(content: str | bytes, stream: IO[bytes], size: int) -> MediaFile:
    """Return the facts of a file of `size` bytes that is open at its beginning."""
    head = stream.read(HEAD_BYTES)
    stream.seek(0)
    found = image_header.image_size(stream)
    is_cut = found is None and image_header.has_known_beginning(head)
    if end := image_header.end_mark(head):
        stream.seek(max(size - HEAD_BYTES, 0))
        is_cut = is_cut or end not in stream.read(HEAD_BYTES)
    return MediaFile(content, found, image_header.is_no_image(head), is_cut)


def media_identity(file: MediaFile) -> bytes:
    """Return bytes that are equal for files of equal content. The size and the first and last 16 KiB decide, so that
    large files are not read whole. The path is the identity of a file that cannot be read."""
    if isinstance(file.content, bytes):
        return blake2b(file.content, digest_size=16).digest()
    try:
        facts = Path(file.content).stat()
        if stat.S_ISREG(facts.st_mode):
            return _digest(file.content, facts.st_size, facts.st_mtime_ns)
    except (OSError, ValueError):
        pass
    return file.content.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=_REMEMBERED_FILES)
def _digest(path: str, size: int, _changed: int) -> bytes:
    with safe_read.open_file(path) as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(max(size - HEAD_BYTES, len(head)))
        return blake2b(b"%d" % size + head + stream.read(HEAD_BYTES), digest_size=16).digest()
