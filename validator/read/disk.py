"""What lies at a path that somebody wrote: questions that no path makes fail or wait, and a way in without waiting."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

Kind = Literal["file", "folder", "pipe", "socket", "device"]
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip


def kind(path: str | Path) -> Kind | None:
    """What lies there, behind links; None where nothing does, where it may not be looked at, and where no file can be
    called so: too long, with a NUL, a link that leads to itself."""
    try:
        return _KINDS.get(stat.S_IFMT(Path(path).stat().st_mode))
    except (OSError, ValueError):
        return None


def descriptor(path: str | Path) -> int:
    """What lies there, opened to read its bytes as they are; the other end of a pipe is not waited for, and where the
    system knows no such mode (Windows), none is needed. Raises OSError, and ValueError where no file can be called
    so."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))


def inside(folder: Path) -> list[Path]:
    """What a folder holds, in the order the system lists it; nothing where it cannot be listed."""
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):
        return []


def matching(folder: Path, pattern: str) -> Iterator[Path]:
    """What a folder holds under names of a form, in the order the system lists it; nothing where it cannot be
    listed."""
    with suppress(OSError, ValueError):
        yield from folder.glob(pattern)


def expanded(path: str | Path) -> Path:
    """With the home folder in place of `~`; as it is written where there is none, which is how others take it, too."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
