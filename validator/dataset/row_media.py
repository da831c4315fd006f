"""Images, videos and sounds of one row: what identifies them, and the tokens of images."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from validator.rows.converter import FatalRowError
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.media_columns import PLACEHOLDERS
from validator.rows.media_files import media_identity, require_images, row_media_files
from validator.run.image_tokens import ImageCounter, ImageTokens


class RowMedia(NamedTuple):
    """Images, videos and sounds of a row. `hash`: a 64-bit hash of what identifies them; 0 without any. `images`: the
    tokens of each image. `unread`: number of images whose size is not known, `cut`: of those that are cut off.
    `uncounted`: kinds (images, videos, audios) whose tokens are not counted."""

    hash: int = 0
    images: tuple[ImageTokens, ...] = ()
    unread: int = 0
    cut: int = 0
    uncounted: frozenset[str] = frozenset()


NO_MEDIA = RowMedia()


def read_row_media(attr: DatasetAttr, folder: str, row: Mapping[str, Any], counter: ImageCounter | None) -> RowMedia:
    """Return the media of a row. `folder`: the folder to which paths are relative. `counter`: counts the tokens of
    images; None if they cannot be counted. An image whose size is not known counts as the largest that the recipe
    allows. Raises FatalRowError for a file that is no image, and for an image that the processor refuses."""
    identities, images, uncounted, unread, cut = list[bytes](), list[ImageTokens](), set[str](), 0, 0
    for kind in PLACEHOLDERS:
        value = row.get(attr.columns.get(kind) or "")
        files = list(row_media_files(value, folder)) if value else []
        if not files:
            continue
        identities += [kind.encode(), *map(media_identity, files)]
        if kind == "images":
            require_images(value, files)
            cut = sum(file.is_cut for file in files)
        if kind != "images" or counter is None:
            uncounted.add(kind)
            continue
        unread = sum(file.size is None for file in files)
        for size in (file.size for file in files):
            tokens = counter.count(size) if size else counter.largest
            if tokens is None:
                shape = f" of {size.width:,} x {size.height:,} pixels" if size else ""
                raise FatalRowError(f"an image{shape} is refused: it is too large, or too long and narrow")
            images.append(tokens)
    if not identities:
        return NO_MEDIA
    digest = blake2b(b"\0".join(identities), digest_size=8).digest()
    return RowMedia(int.from_bytes(digest, "big"), tuple(images), unread, cut, frozenset(uncounted))
