"""Downloads of the run's model that another process has under way."""

from __future__ import annotations

import errno
import fcntl
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.job.job import Job
from validator.tables import cache
from validator.train import hub

_WHAT = "hub lock"
_LOCKLESS = (errno.ENOSYS, errno.EOPNOTSUPP)  # of flock, where filelock counts files instead


def lines(job: Job | None, _node: Node) -> Iterator[Line]:
    """The run waits for a download that has begun (huggingface_hub, utils/_fixes.py, WeakFileLock). The kernel frees
    the lock of a process that is gone, but on file systems without locks, where the file alone counts."""
    if job is None:
        return
    for name in hub.names(job):
        folder = cache.home(job.origin[1]) / ".locks" / f"models--{name.replace('/', '--')}"
        yield from islice(filter(None, map(_held, sorted(folder.glob("*.lock")))), 1)


def _held(lock: Path) -> Line | None:
    """A shared lock is taken for a moment: whoever downloads has the only one."""
    waits = "the run waits until it is free"
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        remedy = f"`fuser -v {shlex.quote(str(lock))}` names the process that downloads; end it if it hangs"
        return Line("warning", _WHAT, f"{lock} is held, and {waits}", "", remedy)
    except OSError as err:
        if err.errno not in _LOCKLESS:
            return None
        words = f"{lock} is on a file system without locks, where the file alone counts, and {waits}"
        return Line("warning", _WHAT, words, "", f"if nobody downloads: `rm {shlex.quote(str(lock))}`")
    return None
