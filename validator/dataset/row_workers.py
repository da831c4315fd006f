"""Processes that read parts of a file: none is left when this process ends, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TypeVar

from validator import processes
from validator.errors import RecipeError

T = TypeVar("T")
WORKER_COUNT = os.cpu_count() or 1
_TASKS_AHEAD = 4 * WORKER_COUNT  # parts that are read before their turn
# From Python 3.14 on a server would start them on Linux, which is not the process that they are to end with.
_START_METHOD = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def results_in_order(work: Callable[..., T], tasks: Sequence[tuple[object, ...]]) -> Iterator[T]:
    """Yield what the work makes of each task, in their order. Raises what the work raises, and RecipeError if a process
    is killed."""
    left = iter(tasks)
    with ProcessPoolExecutor(WORKER_COUNT, _START_METHOD, initializer=_follow_parent) as workers:
        try:
            with processes.delay_interrupt():
                waiting: list[Future[T]] = [workers.submit(work, *task) for task in islice(left, _TASKS_AHEAD)]
            while waiting:
                yield waiting.pop(0).result()
                waiting += [workers.submit(work, *task) for task in islice(left, 1)]
        except BrokenProcessPool:
            raise RecipeError("a process that read rows was killed; has this machine memory left?") from None
        except BaseException:
            for worker in multiprocessing.active_children():
                worker.kill()
            raise


def _follow_parent() -> None:
    """Leave Ctrl-C to the process that started this one, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    processes.die_with_parent()
