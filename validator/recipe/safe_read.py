"""Reads files at paths that a user wrote. No function fails or waits, whatever is at a path: a pipe, a device, a link
to itself. Bytes, text, JSON and YAML are read up to a limit, and raise one clear error. All readers of files that a
user can name open them here."""

from __future__ import annotations

import codecs
import errno
import json
import os
import stat
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal

from validator.errors import RecipeError, os_reason
from validator.recipe import omegaconf
from validator.recipe.suggestions import nearest_name

PathKind = Literal["file", "folder", "pipe", "socket", "device"]
_KIND_OF_MODE: dict[int, PathKind] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip


def path_kind(path: str | Path) -> PathKind | None:
    """Return what is at a path, after following links: a file, a folder, a pipe …; None if nothing is there or it is
    not accessible. Also None for a path that the system refuses, because its name is too long, it contains a NUL, or it
    is a link to itself."""
    try:
        return _KIND_OF_MODE.get(stat.S_IFMT(Path(path).stat().st_mode))
    except (OSError, ValueError):
        return None


def real_path(path: str | Path) -> Path:
    """Return the absolute path without links that a path leads to. Where links lead in a circle, or the path is no
    possible one, the rest of it stays as it is; `Path.resolve` raises an error."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        return Path(path).absolute()


def without_detour(path: Path) -> Path:
    """Return the path without `folder/..` in it if it leads to the same place, so that messages show it short; a folder
    that is a link, or is not there, stays in it."""
    if ".." not in path.parts or path.name == "..":
        return path
    short = Path(os.path.normpath(path))
    with suppress(OSError, ValueError):
        return short if path.parent.samefile(short.parent) else path
    return path


class NoFileError(OSError):
    """Something at a path that is no regular file. `kind`: what it is."""

    def __init__(self, kind: PathKind | None) -> None:
        self.kind = kind
        super().__init__(errno.EINVAL, f"is a {kind}, not a file")


def open_file(path: str | Path) -> IO[bytes]:
    """Return a regular file, opened to read its bytes. Nothing else is opened: a pipe would be waited for, and a device
    may act on it. Raises NoFileError for what is no regular file, OSError if the file cannot be opened, and ValueError
    for a name that no file can have."""
    if (kind := path_kind(path)) not in ("file", None):
        raise NoFileError(kind)
    # What came into its place since is not waited for, either; Windows needs no such mode.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NoFileError(_KIND_OF_MODE.get(stat.S_IFMT(mode)))
    return os.fdopen(descriptor, "rb")


def list_folder(folder: Path) -> list[Path]:
    """Return the entries of a folder, in the order in which the system lists them; an empty list if the folder cannot
    be listed."""
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):
        return []


def glob_folder(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the entries of a folder that match a glob pattern, in the order in which the system lists them; nothing if
    the folder cannot be listed."""
    with suppress(OSError, ValueError):
        yield from folder.glob(pattern)


def expand_home(path: str | Path) -> Path:
    """Return the path with `~` replaced by the home folder. If there is no home folder, the path stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def near_path(path: str | Path) -> str | None:
    """Return the path that was probably meant by one at which nothing is: with `/` where Windows has a backslash, with
    the home folder for `~`, or the most similar name in the same folder; None if there is none."""
    text = os.fspath(path)
    for spelled in (text.replace("\\", "/"), str(expand_home(text))):
        if spelled != text and path_kind(spelled):
            return spelled
    folder, name = Path(text).parent, Path(text).name
    near = nearest_name(name, [each.name for each in list_folder(folder)]) if name else None
    return str(folder / near) if near else None


_MAX_BYTES = 1 << 20


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for `-`. Raises RecipeError with one clear sentence if the file
    cannot be read, is larger than 1 MiB, or is not text."""
    return decode_text(read_bytes(path))


def read_bytes(path: str | Path) -> bytes:
    """Return the bytes of a file, or of standard input for `-`. Of more than 1 MiB only the beginning is returned,
    which `decode_text` then refuses. Raises RecipeError if the file cannot be read. A pipe, a socket or a device at the
    path is not read, and also raises RecipeError."""
    try:
        if path == "-":
            return sys.stdin.buffer.read(_MAX_BYTES + 1)
        with open_file(path) as file:
            return file.read(_MAX_BYTES + 1) or b""  # None where a file of the kernel has nothing to read yet
    except NoFileError as err:
        remedy = "" if err.kind == "folder" else "; save what it gives, or pipe a recipe into `-`"
        raise RecipeError(f"is a {err.kind}, not a file{remedy}") from None
    except OSError as err:
        closed = path == "-" and err.errno == errno.EBADF
        near = near_path(path) if err.errno == errno.ENOENT else None
        remedy = f"did you mean `{near}`?" if near else "check the path"
        remedy = "download it, and give the file" if str(path).startswith(("http:", "https:")) else remedy
        why = "standard input is closed" if closed else f"{os_reason(err)}; {remedy}"
        raise RecipeError(f"cannot be read: {why}") from None
    except ValueError:
        raise RecipeError("is a path that no file can have, with a NUL or half a character; check the path") from None


LFS_POINTER_REASON = "is a Git LFS pointer, not the file itself; run `git lfs pull`"


def is_lfs_pointer(head: bytes) -> bool:
    """Return True if a file that begins with these bytes stands for a file in Git LFS that was not downloaded."""
    return head.startswith(b"version https://git-lfs")


def decode_text(data: bytes) -> str:
    """Return the bytes of a recipe as text. Raises RecipeError for content that is not UTF-8 text, or is larger than 1
    MiB, and for a Git LFS pointer."""
    if is_lfs_pointer(data):
        raise RecipeError(LFS_POINTER_REASON)
    if len(data) > _MAX_BYTES:
        raise RecipeError("is larger than 1 MiB, which no recipe is; check that this is the right file")
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as err:
        raise RecipeError(f"is not UTF-8 text (byte {err.start}); save it as UTF-8") from None
    if "\0" in text:
        raise RecipeError("contains NUL bytes, so it is not a text file")
    return text


# Python's json.load stops there, whoever calls it.
_BYTE_ORDER_MARK = "is not valid JSON: it begins with a byte order mark (save it as UTF-8 without BOM)"
_MAX_DEPTH = 100
_MAX_DIGITS = 308  # of a whole number that is a float, too
_TOO_DEEP = "is nested too deeply to be read"


def read_yaml(path: str) -> Any:
    """Return the value of a settings file in YAML. Raises RecipeError if the file cannot be read. The error's message
    does not name the path, so that callers can write the path before it."""
    text = read_text(path)
    try:
        omegaconf.refuse_oversized(text)
        return omegaconf.compose_yaml(text, _refuse_unbounded)[1]
    except ValueError as err:
        raise RecipeError(str(err)) from None


def parse_trusted_yaml(text: str) -> Any:
    """Return the value of YAML text from this package's own data files, which needs no limits."""
    return omegaconf.load_plain_yaml(text)


def read_json(path: str) -> Any:
    """Return the value of a JSON file. Raises RecipeError if the file cannot be read; for invalid JSON, its message
    names the line."""
    try:
        data = read_bytes(path)
        if data.startswith(codecs.BOM_UTF8):
            raise RecipeError(_BYTE_ORDER_MARK)
        return parse_json(decode_text(data))
    except RecipeError as err:
        raise RecipeError(f"`{path}` {err}") from None


@lru_cache(maxsize=8)
def parse_json(text: str) -> Any:
    """Return the value of JSON text. Callers must not modify the value: it is cached, because several recipes name the
    same file. Raises RecipeError for invalid JSON; its message names the line but not the file."""
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
    """True if lists and mappings inside of `value` are nested in more than `most` levels. The default is deeper than
    any meaningful setting, and shallow enough for recursive code."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return False
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return True


def _refuse_unbounded(root: omegaconf.Node) -> bool:
    """Raise MalformedError if aliases expand the document too far. Otherwise return True, so that `compose_yaml` makes
    values of its nodes."""
    omegaconf.refuse_expansion(root)
    return True


# A recipe that is wrong must not cost a walk through a million files.
_MAX_SEARCHED = 20_000
_UNSEARCHED_FOLDERS = ("node_modules", "venv", "site-packages")


def find_below(root: Path, name: str) -> Iterator[Path]:
    """Yield the folders at and below `root` that hold a file of this name, the nearest first. Links, hidden folders,
    checkpoints and installed packages are left out, and the search ends after 20,000 files and folders."""
    folders, looked_at = deque([root]), 0
    while folders:
        folder, below = folders.popleft(), []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    looked_at += 1
                    if looked_at > _MAX_SEARCHED:
                        return
                    if entry.name == name and entry.is_file(follow_symlinks=False):
                        yield folder
                    elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith((".", "checkpoint-")):
                        below.append(entry.name)
        except OSError:
            continue
        folders += (folder / each for each in sorted(below) if each not in _UNSEARCHED_FOLDERS)
