"""No process outlives the one that answers for it. Linux alone sees to that (prctl(2)); elsewhere nothing is done."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

# linux/prctl.h
_PARENT_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36


def adopt(wanted: bool = True) -> None:
    """Processes below this one whose own parent ends become children of this one: none is lost from sight."""
    _control(_CHILD_SUBREAPER, int(wanted))


def follow() -> None:
    """This process, which multiprocessing has started, is killed when the thread that started it ends, however that
    ends."""
    _control(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    from multiprocessing import parent_process  # which whoever calls this has imported

    parent = parent_process()
    if parent and parent.pid != os.getppid():  # it ended before
        os._exit(1)


@contextmanager
def started() -> Iterator[None]:
    """Ctrl-C is answered after processes have been started, not in the middle: what Python itself does after a fork
    (os.register_at_fork) loses it, and a process that is half started is not ended. They inherit that it waits. Where
    it reaches another thread, such as one of a library's, this one is told at once in spite of its mask, so Python's
    own answer waits, too."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before, answer = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]), signal.getsignal(signal.SIGINT)
    told: list[tuple[int, FrameType | None]] = []
    waits = callable(answer) and threading.current_thread() is threading.main_thread()
    if waits:
        signal.signal(signal.SIGINT, lambda number, frame: told.append((number, frame)))
    try:
        yield
    finally:
        if waits:
            signal.signal(signal.SIGINT, answer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if told and callable(answer):
            answer(*told[0])


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Processes whose parent this is."""
    families, ended = _families()
    return [each for each in families[pid] if each not in ended]


def below(pid: int) -> Iterator[int]:
    """All processes below this one, parents first."""
    (families, ended), wanted = _families(), [pid]
    for parent in wanted:
        wanted += families[parent]
    yield from (each for each in wanted[1:] if each not in ended)


def end(others: Collection[int], seconds: float) -> None:
    """Kill all children of this process but the others, and those that become children as these end, until none is
    left, or for so many seconds."""
    until, ending = time.monotonic() + seconds, set[int]()
    while time.monotonic() < until:
        for pid in {*_families()[0][os.getpid()]} - {*others}:
            send(pid, signal.SIGKILL)
            ending.add(pid)
        if not ending:
            return
        # One that looks ended has its own children until its last thread is gone, and then it can be waited for.
        ending -= {pid for pid in ending if _waited(pid)}
        time.sleep(0.01)


def _waited(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def stopped(pid: int) -> bool:
    """Whether it stands still, or has ended."""
    return (_status(pid, "State") or "T").startswith(("T", "t", "Z", "X"))


def pends(pid: int, number: int) -> bool:
    """Whether it has been sent the signal, and has not taken notice of it: as one that is stopped."""
    return bool(int(_status(pid, "ShdPnd") or "0", 16) >> (number - 1) & 1)


def _status(pid: int, name: str) -> str:
    """What proc(5) says of a process; nothing of one that has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


def _families() -> tuple[defaultdict[int, list[int]], set[int]]:
    """Children by their parent, as proc(5) tells it, and which of them have ended; none where there is no /proc."""
    families, ended = defaultdict[int, list[int]](list), set[int]()
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The name, in parentheses, may hold spaces and parentheses itself.
            state, parent = place.read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
            pid = int(place.parent.name)
            families[int(parent)].append(pid)
            if state in "ZX":
                ended.add(pid)
    return families, ended


def send(pid: int, number: int) -> None:
    """Send a signal, where the process is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
