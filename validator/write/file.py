"""Files written whole or not at all.

New content goes into a file beside, reaches the disk, and takes the place of the old in one step, so that a full disk,
a killed process or a loss of power leaves the one or the other. Of several processes each sees what the one before it
has written."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.write.part import held

Change = Callable[[bytes | None], str | bytes | None]


def create(target: Path, content: str | bytes) -> None:
    """Write a new file, with the folders it stands in. Raises RecipeError where it exists or cannot be written."""

    def new(before: bytes | None) -> str | bytes:
        if before is not None:
            raise _taken(target)
        return content

    if os.path.lexists(target):  # a link that leads nowhere is not written through, either
        raise _taken(target)
    folder(target.parent)
    edit(target, new)


def replace(target: Path, content: str | bytes) -> None:
    """Write a file in place of one that is there or not. Raises RecipeError as `edit` does."""
    edit(target, lambda _: content)


def edit(target: Path, change: Change) -> None:
    """Write what is made of a file's content; `change` is given None where there is no file, and gives None where
    nothing is to be written. Mode, owner and attributes stay as far as the user may set them, and a link keeps pointing
    to the file; another name of it, by a hard link, keeps the old content.

    Raises RecipeError where it cannot be written, is read-only, or was changed in the meantime, and what `change`
    raises."""
    file = Path(os.path.realpath(target))
    try:
        with held(file) as (part, opened):
            before = _content(file)
            after = change(before)
            if after is None:
                return
            if before is not None:
                _take_on(target, file, opened)  # first: what others may not read is never theirs to read
            with os.fdopen(opened, "wb", closefd=False) as stream:
                stream.write(after if isinstance(after, bytes) else _encoded(target, after))
            os.fsync(opened)
            if before is None:
                _name(part, file)
            elif _content(file) == before:
                part.replace(file)
            else:
                raise RecipeError(f"`{target}` was changed in the meantime; nothing is written to it, run again")
        _settle(file.parent)
    except FileExistsError:
        raise _taken(target) from None
    except OSError as err:
        raise RecipeError(f"`{target}` cannot be written: {_why(err)}") from None


def folder(place: Path) -> None:
    """Make a folder, with those it stands in, where there is none. Raises RecipeError."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise RecipeError(f"the folder `{place}` cannot be made: {_why(err)}") from None


def _content(file: Path) -> bytes | None:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise RecipeError(f"`{file}` is there and is no file; choose another name")
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _encoded(target: Path, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RecipeError(f"`{target}` would hold a name that is not UTF-8; rename what it names") from None


def _take_on(target: Path, file: Path, new: int) -> None:
    """Give the new file what the old one has: owner, where the user may, access control list and other attributes, and
    mode. Raises RecipeError for one that may not be written, which taking its place would not heed."""
    old = file.stat()
    if not (old.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) and os.access(file, os.W_OK)):
        raise RecipeError(f"`{target}` is read-only; nothing is written to it")
    own = os.fstat(new)
    for user, group in ((old.st_uid, -1), (-1, old.st_gid)):
        if user not in (-1, own.st_uid) or group not in (-1, own.st_gid):
            with suppress(PermissionError):
                os.fchown(new, user, group)
    if sys.platform == "linux":
        with suppress(OSError):  # a file system without them
            for name in os.listxattr(file):
                with suppress(OSError):  # some are the kernel's own
                    os.setxattr(new, name, os.getxattr(file, name))
    os.fchmod(new, stat.S_IMODE(old.st_mode))


def _name(part: Path, file: Path) -> None:
    """Give a new file its name. A link cannot replace a file that somebody else made in the meantime; where the file
    system has none (FAT), one made in this very moment would be lost. Raises FileExistsError, OSError."""
    try:
        file.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(file):
            raise FileExistsError from None
        part.rename(file)


def _settle(place: Path) -> None:
    """Bring a folder's names to the disk. A file system that cannot do that has the file in its place all the same."""
    with suppress(OSError):
        opened = os.open(place, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _taken(target: Path) -> RecipeError:
    return RecipeError(f"`{target}` exists and is not overwritten; choose another name, or remove it")


def _why(err: OSError) -> str:
    return (err.strerror or str(err)).lower()
