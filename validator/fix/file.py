"""A file repaired: read as bytes, so that its mark of order and line ends stay, and written only if it is as it was."""

from __future__ import annotations

import codecs
import os
import stat
import sys
from pathlib import Path
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.read import text
from validator.write import file


class Original(NamedTuple):
    """A file as it was read. `mark` is what stands before the text, `data` all of it."""

    path: str
    data: bytes
    mark: str
    text: str


def read(path: str) -> Original:
    """The file, or standard input for `-`. Raises RecipeError."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as err:
        raise RecipeError(f"cannot be read: {(err.strerror or str(err)).lower()}; check the path") from None
    return Original(path, data, "\ufeff" if data.startswith(codecs.BOM_UTF8) else "", text.decode(data))


def write(original: Original, content: str) -> None:
    """Put the text in the place of the file's; of standard input it goes to standard output. Raises RecipeError where
    the file may not be written, or is not what it was any more."""
    if original.path == "-":
        sys.stdout.write(original.mark + content)
        return
    path = Path(original.path)
    try:
        if not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(path, os.W_OK):
            raise RecipeError(f"`{path}` is read-only; nothing is written to it")
        if path.read_bytes() != original.data:
            raise RecipeError(f"`{path}` was changed while it was fixed; nothing is written to it, run again")
    except OSError as err:
        raise RecipeError(f"`{path}` cannot be written: {(err.strerror or str(err)).lower()}") from None
    file.replace(path, original.mark + content)
