"""A file, or standard input, as text."""

from __future__ import annotations

import codecs
import errno
import os
import sys
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.read import disk

_MAX_BYTES = 1 << 20


def read_text(path: str) -> str:
    """The file as text, standard input for `-`. Raises RecipeError with one clear sentence where it cannot be read."""
    return decode(read_bytes(path))


def read_bytes(path: str | Path) -> bytes:
    """What a file holds, standard input for `-`: of more than 1 MiB the beginning, which `decode` refuses. Of a pipe,
    a socket or a device nothing is read, and none is waited for. Raises RecipeError as `read_text`."""
    try:
        return sys.stdin.buffer.read(_MAX_BYTES + 1) if path == "-" else _beginning(path)
    except OSError as err:
        closed = path == "-" and err.errno == errno.EBADF
        why = "standard input is closed" if closed else f"{(err.strerror or str(err)).lower()}; check the path"
        raise RecipeError(f"cannot be read: {why}") from None
    except ValueError:
        raise RecipeError("is a path that no file can have, with a NUL or half a character; check the path") from None


def _beginning(path: str | Path) -> bytes:
    lies = disk.kind(path)
    if lies == "folder":
        raise RecipeError("is a folder, not a file")
    if lies not in ("file", None):
        raise RecipeError(f"is a {lies}, not a file; save what it gives, or pipe a recipe into `-`")
    # What came into its place since is not waited for, either.
    file, data = disk.descriptor(path), b""
    try:
        while len(data) <= _MAX_BYTES and (more := os.read(file, _MAX_BYTES + 1 - len(data))):
            data += more
    finally:
        os.close(file)
    return data


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


def clip(text: str, most: int = 60) -> str:
    """The text, shortened to what a message can show."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
