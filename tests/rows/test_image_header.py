"""Sizes of images from the beginning of their files: as Pillow reads them, and none for anything else."""

from __future__ import annotations

import random
from io import BytesIO
from typing import Any

import pytest

from validator.rows.image_header import ImageSize, has_known_beginning, image_size, is_no_image
from validator.rows.media_files import row_media_files

KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("PNG", "RGB", {}), ("PNG", "RGBA", {}), ("PNG", "1", {}), ("JPEG", "RGB", {}), ("JPEG", "L", {}),
    ("JPEG", "CMYK", {}), ("JPEG", "RGB", {"progressive": True}), ("JPEG", "RGB", {"exif": b"Exif\0\0" + b"x" * 60000}),
    ("JPEG", "RGB", {"icc_profile": b"i" * 200_000}), ("GIF", "P", {}), ("BMP", "RGB", {}), ("WEBP", "RGB", {}),
    ("WEBP", "RGB", {"lossless": True}), ("WEBP", "RGBA", {}), ("WEBP", "RGB", {"exif": b"x" * 99}),
    ("TIFF", "RGB", {}), ("TIFF", "RGB", {"compression": "tiff_lzw"}), ("PPM", "RGB", {}), ("PPM", "L", {}),
]  # fmt: skip
BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF1234WEBPVP8X", b"RIFF1234WEBPVP8L", b"RIFF1234WEBPVP8 ",
              b"P6 ", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"")  # fmt: skip


@pytest.mark.parametrize(("kind", "mode", "options"), KINDS)
@pytest.mark.parametrize("size", [(1, 1), (3, 900), (640, 480)])
def test_sizes_are_those_that_pillow_writes(
    kind: str, mode: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    images = pytest.importorskip("PIL.Image")
    file = BytesIO()
    images.new(mode, size).save(file, kind, **options)
    assert image_size(BytesIO(file.getvalue())) == size


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"P2\n2 3\n255\n0 255", (2, 3)),
        (b"P5 # a remark\n# another\n12\n7 255\n", (12, 7)),
        (b"BM" + bytes(12) + b"\x0c\0\0\0" + b"\x05\0\x06\0", (5, 6)),  # OS/2
        (b"BM" + bytes(12) + b"\x28\0\0\0" + b"\x05\0\0\0" + b"\xfa\xff\xff\xff", (5, 6)),  # rows from the top
        (b"\x89PNG\r\n\x1a\n" + bytes(4) + b"IHDR" + bytes(8), None),  # no pixel
        (b"\x89PNG\r\n\x1a\n", None),
        (b"\xff\xd8\xff" + b"\0" * 3_000_000, None),
        (b"\xff\xd8" + b"\xff\xe0\0\x02" * 5000, None),
        (b"P6 99999999999999999 1 ", None),
        (b"not an image", None),
        (b"", None),
    ],
)
def test_odd_files(data: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(BytesIO(data)) == (size and ImageSize(*size))


def test_no_content_raises_an_error() -> None:
    chance = random.Random(0)
    for _ in range(4000):
        image_size(BytesIO(chance.choice(BEGINNINGS) + chance.randbytes(chance.randrange(90))))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "is a Git LFS pointer"),
        (b"\n<!DOCTYPE html><html>", "is a web page"),
        (b"<html lang=en>", "is a web page"),
        (b"<svg>", ""),
        (b"\x89PNG", ""),
    ],
)
def test_files_that_are_surely_no_image(head: bytes, said: str) -> None:
    assert is_no_image(head).startswith(said)
    assert bool(is_no_image(head)) == bool(said)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_what_ends_before_its_size_pillow_does_not_open(kind: str) -> None:
    images = pytest.importorskip("PIL.Image")
    file = BytesIO()
    images.new("RGB", (40, 30)).save(file, kind)
    whole = file.getvalue()
    cut = [whole[:end] for end in range(1, min(len(whole), 300))]
    alarms = [data for data in cut if image_size(BytesIO(data)) is None and has_known_beginning(data)]
    assert alarms
    for data in alarms:
        with pytest.raises((OSError, SyntaxError)):
            images.open(BytesIO(data))
    assert not (image_size(BytesIO(whole)) is None and has_known_beginning(whole))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_an_image_whose_end_is_missing_is_cut(kind: str) -> None:
    images, file = pytest.importorskip("PIL.Image"), BytesIO()
    images.effect_noise((400, 300), 90).save(file, kind)
    whole, cut = file.getvalue(), file.getvalue()[: len(file.getvalue()) // 2]
    facts = [next(row_media_files({"bytes": data}, "")) for data in (whole, cut)]
    assert [(each.size, each.is_cut) for each in facts] == [((400, 300), False), ((400, 300), True)]
    with pytest.raises(OSError, match="truncated"):
        images.open(BytesIO(cut)).load()
