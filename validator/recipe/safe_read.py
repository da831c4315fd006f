"""Reading what lies at a path that a user wrote. No question about a path fails or waits, whatever lies there: a
pipe, a device, a link to itself. Bytes, text, JSON and YAML are read with limits and with one clear error."""

from __future__ import annotations

import codecs
import errno
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from validator.errors import RecipeError, os_reason
from validator.recipe import omegaconf

PathKind = Literal["file", "folder", "pipe", "socket", "device"]
_KIND_OF_MODE: dict[int, PathKind] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip


def path_kind(path: str | Path) -> PathKind | None:
    """Return the kind of file at a path, behind links; None if there is none, if it may not be looked at, or if no file
    can have that name: too long, with a NUL, a link that leads to itself."""
    try:
        return _KIND_OF_MODE.get(stat.S_IFMT(Path(path).stat().st_mode))
    except (OSError, ValueError):
        return None


def open_without_waiting(path: str | Path) -> int:
    """Return a file descriptor for the bytes of a path. Opening a pipe does not wait for its other end; Windows has no
    such mode and needs none. Raises OSError, and ValueError for a name that no file can have."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))


def list_folder(folder: Path) -> list[Path]:
    """Return the entries of a folder, in the order the system lists it; none if it cannot be listed."""
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):
        return []


def glob_folder(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the entries of a folder that match a pattern, in the order the system lists it; none if it cannot be
    listed."""
    with suppress(OSError, ValueError):
        yield from folder.glob(pattern)


def expand_home(path: str | Path) -> Path:
    """Return the path with the home folder in place of `~`; as it is written if there is no home, as others take it,
    too."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


_MAX_BYTES = 1 << 20


def read_text(path: str) -> str:
    """Return a file as text, or standard input for `-`. Raises RecipeError with one clear sentence if it cannot be
    read."""
    return decode_text(read_bytes(path))


def read_bytes(path: str | Path) -> bytes:
    """Return the bytes of a file, of standard input for `-`; of more than 1 MiB the beginning, which `decode_text`
    refuses. A pipe, a socket or a device is neither read nor waited for. Raises RecipeError as `read_text` does."""
    try:
        return sys.stdin.buffer.read(_MAX_BYTES + 1) if path == "-" else _read_beginning(path)
    except OSError as err:
        closed = path == "-" and err.errno == errno.EBADF
        why = "standard input is closed" if closed else f"{os_reason(err)}; check the path"
        raise RecipeError(f"cannot be read: {why}") from None
    except ValueError:
        raise RecipeError("is a path that no file can have, with a NUL or half a character; check the path") from None


def _read_beginning(path: str | Path) -> bytes:
    lies = path_kind(path)
    if lies == "folder":
        raise RecipeError("is a folder, not a file")
    if lies not in ("file", None):
        raise RecipeError(f"is a {lies}, not a file; save what it gives, or pipe a recipe into `-`")
    # What came into its place since is not waited for, either.
    file, data = open_without_waiting(path), b""
    try:
        while len(data) <= _MAX_BYTES and (more := os.read(file, _MAX_BYTES + 1 - len(data))):
            data += more
    finally:
        os.close(file)
    return data


def decode_text(data: bytes) -> str:
    """Return the bytes of a recipe as text. Raises RecipeError for binary content and for more than 1 MiB."""
    if len(data) > _MAX_BYTES:
        raise RecipeError("is larger than 1 MiB, which no recipe is; check that this is the right file")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as err:
        raise RecipeError(f"is not UTF-8 text (byte {err.start}); save it as UTF-8") from None
    if "\0" in text:
        raise RecipeError("contains NUL bytes, so it is not a text file")
    return text


_MAX_DEPTH = 100
_MAX_DIGITS = 308  # of a whole number that is a float, too
_TOO_DEEP = "is nested too deeply to be read"


def read_yaml(path: str) -> Any:
    """Return a settings file in YAML. Raises RecipeError without the path, with which the caller may begin the
    message."""
    text = read_text(path)
    try:
        omegaconf.refuse_oversized(text)
        return omegaconf.compose_yaml(text, _refuse_unbounded)[1]
    except ValueError as err:
        raise RecipeError(str(err)) from None


def parse_trusted_yaml(text: str) -> Any:
    """Return the value of trusted YAML text, from our own data files."""
    return omegaconf.load_plain_yaml(text)


def read_json(path: str) -> Any:
    """Return the value of a JSON file. Raises RecipeError that names the line where it is broken."""
    try:
        return parse_json(read_text(path))
    except RecipeError as err:
        raise RecipeError(f"`{path}` {err}") from None


@lru_cache(maxsize=8)
def parse_json(text: str) -> Any:
    """Return the value of JSON text. It is cached, for recipes that name the same file and changes that are tried, so
    it must not be changed. Raises RecipeError, without a subject, naming the line where the text is broken."""
    try:
        value = json.loads(text, parse_int=_parse_whole_number)
    except json.JSONDecodeError as err:
        where = f"line {err.lineno} column {err.colno}"
        raise RecipeError(f"is not valid JSON: {err.msg.lower()} at {where}") from None
    except ValueError:
        raise RecipeError("holds a number of too many digits to be read") from None
    except RecursionError:
        raise RecipeError(_TOO_DEEP) from None
    if is_too_deep(value):
        raise RecipeError(_TOO_DEEP)
    return value


def _parse_whole_number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(digits)
    return int(digits)


def is_too_deep(value: object, most: int = _MAX_DEPTH) -> bool:
    """True if lists and objects are nested deeper than so many levels; the default is more than any meaningful file
    has, and than recursive code can follow."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return False
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return True


def _refuse_unbounded(root: omegaconf.Node) -> bool:
    """True, as values are made of all nodes, unless aliases expand them too far. Raises MalformedError."""
    omegaconf.refuse_expansion(root)
    return True
