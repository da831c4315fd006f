"""Reads large files of JSON lines in parts, with several processes. All of these processes end when this process ends,
in whatever way it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import TypeVar

from validator import processes
from validator.dataset import data_files
from validator.errors import RecipeError
from validator.rows import reading_limits
from validator.run import data_streams

T = TypeVar("T")
WORKER_COUNT = os.cpu_count() or 1
_SPAN_BYTES = 16 << 20  # bytes; smaller parts cost more to hand over than they save
_TASKS_AHEAD = 4 * WORKER_COUNT  # parts that are handed out before their results are asked for
# From Python 3.14 on, the default on Linux is a server that starts the processes; they would end with it, not with this
# process.
START_METHOD = multiprocessing.get_context("fork") if sys.platform == "linux" else multiprocessing.get_context("spawn")


def line_spans(path: Path) -> list[tuple[int, int]]:
    """Return the parts of a large file of JSON lines as pairs of start and end in bytes. Each part ends at the end of a
    line. The list is empty for a small file, or a file of another type."""
    size = path.stat().st_size if path.is_file() else 0  # a pipe has no size, and is refused where it is opened
    if size <= _SPAN_BYTES or not data_files.is_json_lines(path):
        return []
    ends: list[tuple[int, int]] = []
    with data_streams.open_raw(path) as stream:
        while (start := ends[-1][1] if ends else 0) < size:
            stream.seek(min(start + _SPAN_BYTES, size))
            stream.readline(reading_limits.MAX_ROW_BYTES + 1)
            ends.append((start, stream.tell()))
    return ends


def results_in_order(work: Callable[..., T], tasks: Sequence[tuple[object, ...]]) -> Iterator[T]:
    """Run `work(*task)` for each task in several processes, and yield the results in the order of the tasks. Raises the
    exception that `work` raises, and RecipeError if a process is killed."""
    left = iter(tasks)
    with ProcessPoolExecutor(WORKER_COUNT, START_METHOD, initializer=follow_parent) as workers:
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


def follow_parent() -> None:
    """Make this child process ignore Ctrl-C, which its parent handles, and end when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    processes.die_with_parent()
