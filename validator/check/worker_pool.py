"""Judges many files in as many processes as there are processors, and returns the answers in the order of the files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

from validator import processes
from validator.errors import RecipeError

Item = TypeVar("Item")
Answer = TypeVar("Answer")
# To begin costs a process as much as a few files; what a pipe holds is about an answer to a part.
_ITEMS_PER_PART = 16
_MAX_PROCESSES = 16


def map_in_processes(judge: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Return `judge(item)` for each item, in order, computed by several processes. Without fork, or with one processor,
    this process computes all of them. Raises RecipeError if a signal ended one of the processes."""
    parts = [items[at : at + _ITEMS_PER_PART] for at in range(0, len(items), _ITEMS_PER_PART)]
    number = min(_usable_processors(), len(parts) - 1)
    if number < 2:
        return [judge(each) for each in items]
    answers = [judge(each) for each in parts.pop(0)]  # so that what all need is read before they part
    workers: list[tuple[BaseProcess, Connection]] = []
    fork = get_context("fork")
    try:
        with processes.delay_interrupt():
            for first in range(number):
                receiving, sending = fork.Pipe(duplex=False)
                worker = fork.Process(target=_send_answers, args=(judge, parts[first::number], sending))
                worker.start()
                workers.append((worker, receiving))
                sending.close()
        for at, part in enumerate(parts):
            answers += _receive_answers(judge, part, *workers[at % number])
    finally:
        for process, receiving in workers:
            receiving.close()
            process.kill()
            process.join()
    return answers


def _usable_processors() -> int:
    """Return the number of processors that this process may use; 1 if the system cannot fork as Linux does."""
    can_fork = hasattr(os, "fork") and hasattr(os, "sched_getaffinity")
    return min(len(os.sched_getaffinity(0)), _MAX_PROCESSES) if can_fork else 1


def _send_answers(judge: Callable[[Item], object], parts: Sequence[Sequence[Item]], sending: Connection) -> None:
    """Judge the items in each of `parts` and send the answers through the pipe `sending`. Runs in a worker process,
    which it ends. If `judge` raises, the pipe closes early, and the main process judges that part again and gets the
    same error."""
    try:
        processes.die_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        for part in parts:
            sending.send([judge(each) for each in part])
    finally:
        os._exit(0)


def _receive_answers(
    judge: Callable[[Item], Answer], part: Sequence[Item], worker: BaseProcess, receiving: Connection
) -> list[Answer]:
    try:
        answers: list[Answer] = receiving.recv()
    except (EOFError, OSError):  # nothing came, or a part of an answer
        worker.join()
        if worker.exitcode and worker.exitcode < 0:
            ended = signal.Signals(-worker.exitcode).name
            raise RecipeError(f"a process that judged files was ended by {ended}; give fewer files at once") from None
        return [judge(each) for each in part]
    return answers
