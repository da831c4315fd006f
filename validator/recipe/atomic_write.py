"""Files that are written completely or not at all. New content goes into `.NAME.part` beside the target, is flushed to
disk, and replaces the old file in one step. A full disk, a killed process or a power failure leaves either the old file
or the new one. The process that has locked the part file is the one that writes. A part file without a lock was left by
a killed process, and the next writer removes it.

A file that has other hard links, or an owner or attributes that no new file can be given, is written in place, as vim
does it (`backupcopy=auto`). Its old content lies in `.NAME.old` meanwhile, where a killed process leaves it."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from validator.errors import RecipeError, os_reason
from validator.recipe import safe_read

# A write takes milliseconds, on a network file system with its own wait perhaps a second.
_LOCK_TRIES, _LOCK_WAIT = 200, 0.05
# Bytes of a name that leave room for what is put around it: file systems take 255.
_LONGEST_NAME = 240
# Of a file that is edited or replaced, which is held in memory: more than any that this program writes.
_MAX_BYTES = 64 << 20
# Errors of flock on file systems that have no locks.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked_part_file(target: Path) -> Iterator[tuple[Path, int]]:
    """Yield the path and the file descriptor of a new, empty, locked file in the target's folder, open for writing. The
    file is removed after the `with` block unless it was renamed in the meantime. Raises OSError if it cannot be
    created, and RecipeError if another process keeps it locked."""
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])
    part = target.with_name(f".{name}.part")
    file = _create_locked(part)
    try:
        yield part, file
    finally:
        with suppress(OSError):
            if _is_still_at(part, file):
                part.unlink()
        os.close(file)


def _create_locked(part: Path) -> int:
    for _ in range(_LOCK_TRIES):
        try:
            file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            _remove_leftover(part)
            continue
        try:
            if try_lock(file) and _is_still_at(part, file):
                return file
        except OSError as err:
            if err.errno in NO_LOCKS:  # that it was not there before has to do
                return file
            part.unlink()
            os.close(file)
            raise
        os.close(file)  # another process took it for a leftover before it was locked
    raise RecipeError(f"`{part}` belongs to another process that is writing; wait for that, or end it")


def _remove_leftover(part: Path) -> None:
    """Remove a part file that a killed process left; if its process is still alive, wait a moment. Raises RecipeError
    if the part file cannot be opened or removed."""
    try:
        # A link is not followed, and a pipe does not keep us waiting.
        file = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not try_lock(file):
                time.sleep(_LOCK_WAIT)
            elif _is_still_at(part, file):
                part.unlink()
        finally:
            os.close(file)
    except FileNotFoundError:  # its process has come to its end
        return
    except OSError as err:
        raise RecipeError(
            f"`{part}` is in the way ({os_reason(err)}); remove it where no other process is writing"
        ) from None


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed, exclusively or `shared`. Returns False if another process has locked the
    file. Raises OSError if the file cannot be locked at all (`NO_LOCKS`: the file system has no locks)."""
    import fcntl  # which Windows lacks, where all works that does not write

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still_at(part: Path, file: int) -> bool:
    """True if the path `part` still leads to the open file with the descriptor `file`."""
    try:
        return os.path.samestat(part.lstat(), os.fstat(file))
    except FileNotFoundError:
        return False


ContentChange = Callable[[bytes | None], str | bytes | None]


def create_file(target: Path, content: str | bytes) -> None:
    """Write a new file, and make its missing parent folders. Raises RecipeError if the file exists or cannot be
    written."""

    def new(before: bytes | None) -> str | bytes:
        if before is not None:
            raise _exists_error(target)
        return content

    require_new_file(target)
    make_folder(target.parent)
    edit_file(target, new)


def require_new_file(target: Path) -> None:
    """Raise RecipeError if the file exists. A symbolic link whose target does not exist counts as a file."""
    if os.path.lexists(target):
        raise _exists_error(target)


def replace_file(target: Path, content: str | bytes) -> None:
    """Write a file, whether it exists or not. Raises RecipeError as `edit_file` does."""
    edit_file(target, lambda _: content)


def replace_own_file(target: Path, content: str | bytes, is_ours: Callable[[bytes], bool], otherwise: str) -> None:
    """Write a generated file. An existing file is replaced only if `is_ours` returns True for its content, because it
    was generated, too. Otherwise raises RecipeError with the message `otherwise`. Also raises RecipeError as
    `edit_file` does."""

    def change(before: bytes | None) -> str | bytes:
        if before is not None:
            require_own_file(target, before, is_ours, otherwise)
        return content

    edit_file(target, change)


def require_own_file(target: Path, content: bytes, is_ours: Callable[[bytes], bool], otherwise: str) -> None:
    if not is_ours(content):
        raise RecipeError(f"`{target}` {otherwise}")


_CHECKSUM_LINE = "# lmf-recipes writes this file anew as long as the lines above are as it wrote them: "


def replace_untouched_file(target: Path, text: str) -> None:
    """Write a text that people may edit, with a checksum as its last line, and make its missing parent folders. An
    existing file is replaced only if the lines above its checksum are unchanged. Raises RecipeError if the file was
    edited or cannot be written."""

    def is_untouched(data: bytes) -> bool:
        before, line, checksum = data.decode(errors="replace").rpartition(_CHECKSUM_LINE)
        return bool(line) and checksum.strip() == _checksum(before)

    make_folder(target.parent)
    edited = "is not as it was written here, and not overwritten; choose another name"
    replace_own_file(target, f"{text}{_CHECKSUM_LINE}{_checksum(text)}\n", is_untouched, edited)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def edit_file(target: Path, change: ContentChange) -> None:
    """Replace a file's content by what `change` returns for it. `change` gets None if the file does not exist, and
    returns None if nothing shall be written. Owner, mode, symbolic and hard links are kept, and on Linux the access
    control list and other extended attributes.

    Raises RecipeError if the file cannot be written, is read-only, or was changed in the meantime; also raises what
    `change` raises."""
    file = Path(os.path.realpath(target))
    try:
        with locked_part_file(file) as (part, opened):
            before = _current_content(file)
            after = change(before)
            if after is None:
                return
            data = after if isinstance(after, bytes) else _encode_text(target, after)
            # First: what others may not read is never theirs to read.
            in_place = before is not None and not _copy_attributes(target, file, opened)
            with os.fdopen(opened, "wb", closefd=False) as stream:
                stream.write(before if before is not None and in_place else data)
            os.fsync(opened)
            if before is None:
                _give_name(part, file)
            elif _current_content(file) != before:
                raise RecipeError(f"`{target}` was changed in the meantime; nothing is written to it, run again")
            elif in_place:
                _write_in_place(target, file, part, before, data)
            else:
                part.replace(file)
        _sync_folder(file.parent)
    except FileExistsError:
        raise _exists_error(target) from None
    except OSError as err:
        raise RecipeError(f"`{target}` cannot be written: {os_reason(err)}") from None


def _write_in_place(target: Path, file: Path, part: Path, before: bytes, after: bytes) -> None:
    """Write new content into the old file. `part` holds the old content, and is called `.NAME.old` until the write is
    complete. Raises OSError if the content cannot be written; the file then has its old content."""
    backup = part.with_suffix(".old")
    if os.path.lexists(backup):
        found = f"`{backup}` holds the old content of `{target}`, from a write that was cut short"
        raise RecipeError(f"{found}; compare the two, and remove it")
    part.rename(backup)
    _sync_folder(file.parent)
    try:
        _overwrite(file, after)
    except BaseException:
        try:
            _overwrite(file, before)
        except OSError as err:
            found = f"`{target}` is written in part: {os_reason(err)}"
            raise RecipeError(f"{found}; its old content is in `{backup}`, copy that back") from None
        backup.unlink()
        raise
    backup.unlink()


def _overwrite(file: Path, content: bytes) -> None:
    with file.open("r+b") as stream:
        stream.write(content)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())


def make_folder(place: Path) -> None:
    """Make a folder and its missing parent folders, if it does not exist. Raises RecipeError if it cannot be made."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise RecipeError(f"the folder `{place}` cannot be made: {os_reason(err)}") from None


def _current_content(file: Path) -> bytes | None:
    try:
        with safe_read.open_file(file) as opened:
            content = opened.read(_MAX_BYTES + 1)
    except safe_read.NoFileError:
        raise RecipeError(f"`{file}` is there and is no file; choose another name") from None
    except FileNotFoundError:
        return None
    if len(content) > _MAX_BYTES:
        raise RecipeError(f"`{file}` is larger than {_MAX_BYTES >> 20} MiB, and nothing is written in its place")
    return content


def _encode_text(target: Path, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RecipeError(f"`{target}` would hold a name that is not UTF-8; rename what it names") from None


def _copy_attributes(target: Path, file: Path, new: int) -> bool:
    """Give the open file `new` the owner, mode, access control list and other extended attributes of the old file.
    Return False if `new` cannot have all of them, or if the old file has other hard links; nobody but its owner may
    read `new` then. Raises RecipeError if the old file is read-only, because renaming another file over it would not
    respect that."""
    old = file.stat()
    if not (old.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) and os.access(file, os.W_OK)):
        raise RecipeError(f"`{target}` is read-only; nothing is written to it")
    if (old.st_uid, old.st_gid) != (os.fstat(new).st_uid, os.fstat(new).st_gid):
        with suppress(PermissionError):
            os.fchown(new, old.st_uid, old.st_gid)
    os.fchmod(new, stat.S_IMODE(old.st_mode))
    wanted, inherited = _extended_attributes(file), _extended_attributes(new)
    for name in inherited | wanted:
        with suppress(OSError):  # some are the kernel's own
            if name not in wanted:
                os.removexattr(new, name)
            elif wanted[name] != inherited.get(name):
                os.setxattr(new, name, wanted[name])
    now = os.fstat(new)
    same = (old.st_uid, old.st_gid, old.st_mode) == (now.st_uid, now.st_gid, now.st_mode)
    if same and old.st_nlink == 1 and _extended_attributes(new) == wanted:
        return True
    os.fchmod(new, stat.S_IRUSR | stat.S_IWUSR)
    return False


def _extended_attributes(file: Path | int) -> dict[str, bytes]:
    """Return the extended attributes of a file that a person may have set, by name. Others belong to the file system
    and differ for each file."""
    if sys.platform == "linux":
        with suppress(OSError):  # a file system without them
            names = [name for name in os.listxattr(file) if name.startswith(("user.", "system.", "security."))]
            return {name: os.getxattr(file, name) for name in names}
    return {}


def _give_name(part: Path, file: Path) -> None:
    """Give a new file its final name without replacing a file that somebody else made in the meantime. A hard link does
    that. On a file system without hard links (FAT) a rename is used, and a file made in that very moment would be lost.
    Raises FileExistsError if the name is taken, and OSError if the name cannot be given."""
    try:
        file.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(file):
            raise FileExistsError from None
        part.rename(file)


def _sync_folder(place: Path) -> None:
    """Flush a folder's entries to disk. Errors are ignored: on a file system that cannot do that, the file is in its
    place all the same."""
    with suppress(OSError):
        opened = os.open(place, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _exists_error(target: Path) -> RecipeError:
    return RecipeError(f"`{target}` exists and is not overwritten; choose another name, or remove it")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder, which is removed after the `with` block as far as possible. Raises RecipeError if no
    temporary folder can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="lmf-recipes-", ignore_cleanup_errors=True)
    except OSError as err:
        raise RecipeError(f"no temporary folder can be made: {os_reason(err)}; TMPDIR names another place") from None
    with folder as place:
        yield Path(place)
