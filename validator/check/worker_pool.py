"""Many files judged by as many processes as there are processors, with answers in the order of the files."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple, NoReturn, TypeVar

from validator import processes
from validator.errors import RecipeError

Item = TypeVar("Item")
Answer = TypeVar("Answer")
# To begin costs a process as much as a few files; what a pipe holds is about an answer to a part.
_ITEMS_PER_PART = 16
_MAX_PROCESSES = 16  # processes


class Worker(NamedTuple):
    """A process that judges, and where it answers."""

    process: int
    answers: BinaryIO


def map_in_processes(judge: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """What `judge` says of each. Where there is no fork, or one processor only, this process does it all. Raises
    RecipeError where a process was ended from outside."""
    parts = [items[at : at + _ITEMS_PER_PART] for at in range(0, len(items), _ITEMS_PER_PART)]
    number = min(_usable_processors(), len(parts) - 1)
    if number < 2:
        return [judge(each) for each in items]
    answers = [judge(each) for each in parts.pop(0)]  # so that what all need is read before they part
    workers: list[Worker] = []
    try:
        with processes.delay_interrupt():
            for first in range(number):
                workers.append(_start_worker(judge, parts[first::number], workers))
        for at, part in enumerate(parts):
            answers += _receive_answers(judge, part, workers[at % number])
    finally:
        for worker in workers:
            _end_worker(worker)
    return answers


def _usable_processors() -> int:
    """How many processors this process may use; one where the system cannot fork as Linux does."""
    known = hasattr(os, "fork") and hasattr(os, "sched_getaffinity")
    return min(len(os.sched_getaffinity(0)), _MAX_PROCESSES) if known else 1


def _start_worker(judge: Callable[[Item], object], parts: Sequence[Sequence[Item]], others: Sequence[Worker]) -> Worker:
    answers, writing = os.pipe()
    here, process = os.getpid(), os.fork()
    if not process:
        processes.die_with_parent()
        if os.getppid() != here:  # it has gone before that was said
            os._exit(0)
        for each in (answers, *(other.answers.fileno() for other in others)):
            os.close(each)  # so that a pipe breaks when the process that asks is gone
        _run_worker(judge, parts, writing)
    os.close(writing)
    return Worker(process, os.fdopen(answers, "rb"))


def _run_worker(judge: Callable[[Item], object], parts: Sequence[Sequence[Item]], writing: int) -> NoReturn:
    """Answer part by part. What fails here fails where it is waited for, too, and is told there."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
    try:
        with os.fdopen(writing, "wb") as stream:
            for part in parts:
                pickle.dump([judge(each) for each in part], stream, pickle.HIGHEST_PROTOCOL)
                stream.flush()
    finally:
        os._exit(0)


def _receive_answers(judge: Callable[[Item], Answer], part: Sequence[Item], worker: Worker) -> list[Answer]:
    try:
        answers: list[Answer] = pickle.load(worker.answers)
    except (EOFError, pickle.UnpicklingError):
        _, status = os.waitpid(worker.process, 0)
        if os.WIFSIGNALED(status):
            ended = signal.Signals(os.WTERMSIG(status)).name
            raise RecipeError(f"a process that judged files was ended by {ended}; give fewer files at once") from None
        return [judge(each) for each in part]
    return answers


def _end_worker(worker: Worker) -> None:
    """End a process that may have gone already."""
    worker.answers.close()
    with suppress(ChildProcessError):  # waited for already
        if os.waitpid(worker.process, os.WNOHANG) == (0, 0):
            os.kill(worker.process, signal.SIGKILL)
            os.waitpid(worker.process, 0)
