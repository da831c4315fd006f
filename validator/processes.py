"""Child processes that never outlive their parent, Ctrl-C while they are being started, and all processes below one.
prctl(2) and /proc are Linux's; elsewhere nothing is done, and no process is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import AnyStr

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36  # linux/prctl.h


# What ends a program from outside: a terminal, a batch system, a closed connection. Windows has no SIGHUP.
END_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def handle_end_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install the handler for the signals that end a program, except those that are ignored, as `nohup` does it."""
    heeded = [number for number in END_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


# Seconds after which a wait for a child process begins anew
_TURN_SECONDS = 1.0


def communicate_in_turns(process: subprocess.Popen[AnyStr], text: AnyStr | None = None) -> tuple[AnyStr, AnyStr]:
    """Do what `Popen.communicate` does, and handle a signal within a second. Python handles a signal that comes just
    before a wait begins only when the wait ends, so this function waits in turns."""
    while True:
        try:
            return process.communicate(text, timeout=_TURN_SECONDS)
        except subprocess.TimeoutExpired:
            text = None  # the first turn has taken it


def die_with_parent() -> None:
    """Let the kernel kill this process, which multiprocessing started, when the thread that started it ends in any
    way."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    from multiprocessing import parent_process  # which whoever calls this has imported

    parent = parent_process()
    if parent and parent.pid != os.getppid():  # it ended before
        os._exit(1)


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until processes have been started. What Python itself does after a fork (os.register_at_fork) would
    lose the signal, and a half-started process would not be ended. The processes inherit the delay. A signal that
    reaches another thread, such as a library's, is delivered to this one in spite of its mask, so Python's own handler
    is held back, too."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before, answer = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]), signal.getsignal(signal.SIGINT)
    received: list[tuple[int, FrameType | None]] = []
    waits = callable(answer) and threading.current_thread() is threading.main_thread()
    if waits:
        signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        if waits:
            signal.signal(signal.SIGINT, answer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if received and callable(answer):
            answer(*received[0])


def become_subreaper() -> None:
    """Adopt descendants whose own parent ends: they become children of this process, and none is lost from sight."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def child_pids(pid: int) -> list[int]:
    """Return the processes whose parent is this one."""
    families, ended = _process_families()
    return [each for each in families[pid] if each not in ended]


def descendant_pids(pid: int) -> Iterator[int]:
    """Yield all processes below this one, parents first."""
    (families, ended), pending = _process_families(), [pid]
    for parent in pending:
        pending += families[parent]
    yield from (each for each in pending[1:] if each not in ended)


def _process_families() -> tuple[defaultdict[int, list[int]], set[int]]:
    """Return the child processes by parent (proc(5)), and those of processes that have ended."""
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


def send_signal(pid: int, number: int) -> None:
    """Send a signal if the process is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
