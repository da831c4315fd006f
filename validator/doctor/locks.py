"""Locks that a run would wait for: of who builds an operator, and of who downloads the model."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from time import time

from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.doctor.operators import built, roots
from validator.here import kernel
from validator.job.job import Job
from validator.quoting import quote
from validator.tables import cache
from validator.train import hub

_WHAT, _HUB = "stale lock", "hub lock"
_LOCKLESS = (errno.ENOSYS, errno.EOPNOTSUPP)  # of flock, where filelock counts files instead
_BUILT = 15 * 60  # seconds that no operator takes to build: cpu_adam takes 95 on two cores


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Each lock that this run would meet."""
    yield from _building(job, node)
    yield from _downloading(job) if job else ()


def _building(job: Job | None, node: Node) -> Iterator[Line]:
    """torch makes a file `lock` beside an operator that it builds, and waits where there is one, whether or not the
    process that made it lives (torch, utils/file_baton.py): the run stands still after "Using … as PyTorch extensions
    root" (huggingface/transformers issue 26015, OpenRLHF issue 208)."""
    names = built(job, node) if job else None
    for lock in _locks(node):
        name = lock.parent.name
        if names is None or name in names:
            yield _told(lock, name, node.root, job is not None)


def _locks(node: Node) -> Iterator[Path]:
    for root in roots(node):
        yield from sorted(root.glob("*/lock"))


def _told(lock: Path, name: str, root: Path, wanted: bool) -> Line:
    age = max(time() - lock.stat().st_mtime, 0.0)
    found = f"{lock} is {_lasting(age)} old"
    if builder := _builder(lock.parent, root):
        return Line("ok", _WHAT, f"{found}; process {builder} builds {name}")
    state: State = "error" if wanted and age > _BUILT else "warning"
    nobody = "nobody builds here" if age > _BUILT else "nobody builds here, perhaps another node does"
    waits = f"DeepSpeed waits for {name} without end"
    return Line(state, _WHAT, f"{found}, and {nobody}; {waits}", "", f"`rm {quote(str(lock))}`")


def _builder(folder: Path, root: Path) -> int | None:
    """The process that builds there: torch runs ninja in the operator's folder."""
    for process in (root / "proc").glob("[0-9]*"):
        if kernel.word(process / "comm") == "ninja":
            try:
                there = (process / "cwd").readlink()
            except OSError:  # another user's
                continue
            if there == folder.resolve():
                return int(process.name)
    return None


def _lasting(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _downloading(job: Job) -> Iterator[Line]:
    """The run waits for a download that has begun (huggingface_hub, utils/_fixes.py, WeakFileLock). The kernel frees
    the lock of a process that is gone, but on file systems without locks, where the file alone counts."""
    for name in hub.names(job):
        folder = cache.home(job.origin[1]) / ".locks" / cache.entry(name)
        yield from islice(filter(None, map(_held, sorted(folder.glob("*.lock")))), 1)


def _held(lock: Path) -> Line | None:
    """A shared lock is taken for a moment: whoever downloads has the only one."""
    waits = "the run waits until it is free"
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        remedy = f"`fuser -v {quote(str(lock))}` names the process that downloads; end it if it hangs"
        return Line("warning", _HUB, f"{lock} is held, and {waits}", "", remedy)
    except OSError as err:
        if err.errno not in _LOCKLESS:
            return None
        words = f"{lock} is on a file system without locks, where the file alone counts, and {waits}"
        return Line("warning", _HUB, words, "", f"if nobody downloads: `rm {quote(str(lock))}`")
    return None
