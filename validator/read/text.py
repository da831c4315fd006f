"""A file, or standard input, as text."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path

from validator.diagnostic import RecipeError

_MAX_BYTES = 1 << 20


def read_text(path: str) -> str:
    """The file as text, standard input for `-`. Raises RecipeError with one clear sentence where it cannot be read."""
    if path == "-":
        return decode(sys.stdin.buffer.read(_MAX_BYTES + 1))
    try:
        if Path(path).is_dir():
            raise RecipeError("is a folder, not a file")
        with Path(path).open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as err:
        raise RecipeError(f"cannot be read: {(err.strerror or str(err)).lower()}; check the path") from None
    return decode(data)


def decode(data: bytes) -> str:
    """Bytes of a recipe as text. Raises RecipeError for binary content or a file over 1 MiB."""
    if len(data) > _MAX_BYTES:
        raise RecipeError("is larger than 1 MiB, which no recipe is; check that this is the right file")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as err:
        raise RecipeError(f"is not UTF-8 text (byte {err.start}); save it as UTF-8") from None
    if "\0" in text:
        raise RecipeError("contains NUL bytes, so it is not a text file")
    return text


def clip(text: str) -> str:
    """The text, shortened to what a message can show."""
    return text if len(text) <= 60 else text[:57] + "..."
