"""Many inputs, in processes of a thousand: what ends one of them is put down to the input that did it."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

from fuzz import kinds, oracle, run
from fuzz.given import Input

BATCH = 1000
Make = Callable[[int], Input]
# Files lie in main memory where that can be had.
_SHARED = Path("/dev/shm")


HUNG = "ended by SIGPROF"


class Fault(NamedTuple):
    """An input by its number, and what is wrong with its answer."""

    number: int
    what: str


class Outcome(NamedTuple):
    """What a span of inputs came to; seconds of the processor and MiB of memory of the worst one."""

    tried: int
    faults: list[Fault]
    seconds: float
    mebibytes: float


def campaign(kind: str, start: int, count: int) -> Iterator[Outcome]:
    """Outcomes of the inputs of a kind from a number on, batch by batch."""
    make = partial(kinds.made, kind)
    make(start)  # samples are read once
    end = start + count
    while start < end:
        outcome = examined(make, start, min(start + BATCH, end))
        start += outcome.tried
        yield outcome


def examined(make: Make, start: int, end: int) -> Outcome:
    """The outcome of inputs in a process of their own, up to the one that ends it."""
    run.ready()
    gc.freeze()
    reading, writing = os.pipe()
    base = Path(tempfile.mkdtemp(prefix="lmf-fuzz-", dir=_SHARED if _SHARED.is_dir() else None))
    child = os.fork()
    if not child:
        os.close(reading)
        with os.fdopen(writing, "w") as told:
            _examine(make, range(start, end), base, told)
    os.close(writing)
    with os.fdopen(reading) as told:
        lines = [json.loads(line) for line in told]
    _, status, used = os.wait4(child, 0)
    shutil.rmtree(base, ignore_errors=True)
    faults = [Fault(number, what) for number, whats, _ in lines for what in whats]
    tried = len(lines)
    if status:
        faults.append(Fault(start + tried, f"ended by {_ending(status)}"))
        tried += 1
    return Outcome(tried, faults, max((seconds for *_, seconds in lines), default=0.0), used.ru_maxrss / 1024)


def _ending(status: int) -> str:
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit code {status >> 8}"


def _examine(make: Make, numbers: range, base: Path, told: TextIO) -> NoReturn:
    """Tell of each input, in the process that may end at any of them."""
    leave, code = os._exit, 70
    try:
        run.limit()
        for number in numbers:
            given, folder = make(number), base / str(number)
            said = run.answer(given, folder)
            os.chdir(base)
            shutil.rmtree(folder, ignore_errors=True)
            told.write(json.dumps([number, list(oracle.faults(given, said)), said.seconds]) + "\n")
            told.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def spent() -> float:
    """Seconds of the processor that all processes took that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
