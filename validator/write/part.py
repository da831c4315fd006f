"""The file beside a target that new content is written into, `.NAME.part`, and that one process at a time holds.

Whoever has it locked is the one that writes the target. The lock ends with the process, so what is there without one
was left by a process that was killed: the next takes it away."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from validator.diagnostic import RecipeError

# A write takes milliseconds, on a network file system with its own wait perhaps a second.
_TRIES, _WAIT = 200, 0.05
# Bytes of a name that leave room for what is put around it: file systems take 255.
_LONGEST = 240
# What file systems say that know no locks.
_LOCKLESS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def held(target: Path) -> Iterator[tuple[Path, int]]:
    """A new, empty file beside the target, open for writing. It is removed with the block, if it is still there. Raises
    OSError, and RecipeError where another process does not let go of it."""
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST])
    part = target.with_name(f".{name}.part")
    file = _claimed(part)
    try:
        yield part, file
    finally:
        with suppress(OSError):
            if _is(part, file):
                part.unlink()
        os.close(file)


def _claimed(part: Path) -> int:
    for _ in range(_TRIES):
        try:
            file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            _take_away(part)
            continue
        try:
            if _locked(file) and _is(part, file):
                return file
        except OSError as err:
            if err.errno in _LOCKLESS:  # that it was not there before has to do
                return file
            part.unlink()
            os.close(file)
            raise
        os.close(file)  # another process took it for a leftover before it was locked
    raise RecipeError(f"`{part}` belongs to another process that is writing; wait for that, or end it")


def _take_away(part: Path) -> None:
    """Remove what a process left; where it lives, wait a moment. Raises RecipeError where that cannot be told."""
    try:
        # A link is not followed, and a pipe does not keep us waiting.
        file = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not _locked(file):
                time.sleep(_WAIT)
            elif _is(part, file):
                part.unlink()
        finally:
            os.close(file)
    except FileNotFoundError:  # its process has come to its end
        return
    except OSError as err:
        why = (err.strerror or str(err)).lower()
        raise RecipeError(f"`{part}` is in the way ({why}); remove it where no other process is writing") from None


def _locked(file: int) -> bool:
    """Lock the open file until it is closed; False where another process did. Raises OSError where nothing can be."""
    import fcntl  # which Windows lacks, where all works that does not write

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(part: Path, file: int) -> bool:
    """Whether the open file still has its name."""
    try:
        return os.path.samestat(part.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False
