"""Child processes that never outlive their parent, and Ctrl-C while they are being started. Works on Linux alone
(prctl(2)); elsewhere nothing is done."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# linux/prctl.h
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent() -> None:
    """This process, which multiprocessing has started, is killed when the thread that started it ends, however that
    ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    from multiprocessing import parent_process  # which whoever calls this has imported

    parent = parent_process()
    if parent and parent.pid != os.getppid():  # it ended before
        os._exit(1)


@contextmanager
def delay_interrupt() -> Iterator[None]:
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


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
