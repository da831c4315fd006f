"""A file repaired: read as bytes, so that its mark of order and line ends stay, and written only if it is as it was."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.printable import Exact
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
    data = text.read_bytes(path)
    return Original(path, data, "\ufeff" if data.startswith(codecs.BOM_UTF8) else "", text.decode(data))


def write(original: Original, content: str) -> None:
    """Put the text in the place of the file's; of standard input it goes to standard output. Raises RecipeError where
    the file may not be written, or is not what it was any more."""
    if original.path == "-":
        sys.stdout.write(content if sys.stdout.isatty() else Exact(original.mark + content))
        return

    def fixed(now: bytes | None) -> str:
        if now != original.data:
            raise RecipeError(f"`{original.path}` was changed while it was fixed; nothing is written to it, run again")
        return original.mark + content

    file.edit(Path(original.path), fixed)
