"""How the program bears fuzzed inputs: 100,000 of each kind, each given to the real program within ceilings.

python -m benchmarks reliability stress_inputs --kind recipe --count 20000
                                                            inputs of one kind; exit 1 where a fault is seen
python -m benchmarks reliability stress_inputs --hours 8 --keep  all kinds in turn, for so long; what is answered
                                                                wrongly becomes a case in tests/fixtures/fuzzed/
python -m benchmarks reliability stress_inputs --again                      what was answered wrongly once
python -m benchmarks reliability stress_inputs --record  go on where the record of each kind ends, up to
                                                                100,000; tests/fixtures/fuzzed/ keeps what is wrong

Inputs go by numbers, which mean the same on every machine: --start is the first. In the record, what failed is the
faults that a kept input still shows.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import records
from fuzz import kept, kinds
from fuzz.campaign import BATCH, campaign, examined
from fuzz.run import MEMORY, SECONDS
from robustness.report import PACKAGES, RECORDS, Row, recorded

COUNT = 100_000
TURN = 5 * BATCH
PROMISE = f"exit code 0 to 2 in {SECONDS} s and {MEMORY / 2**30:g} GiB, no control character, strict JSON"


class Result(NamedTuple):
    """What came of a kind: the faults by what they are, each with its first input and how often it was seen."""

    kind: str
    tried: int
    faults: dict[str, tuple[int, int]]
    seconds: float
    mebibytes: float


def rows() -> Iterator[Row]:
    """Every kind, from what is recorded of it up to `COUNT` inputs: half a day of a core at most."""
    while unfinished := [kind for kind in kinds.KINDS if _row(kind).tried < COUNT]:
        for kind in unfinished:
            go_on(kind)
    yield from map(_row, kinds.KINDS)


def tried(kind: str, start: int, count: int) -> Result:
    """So many inputs of a kind."""
    number, faults, seconds, mebibytes = 0, dict[str, tuple[int, int]](), 0.0, 0.0
    for outcome in campaign(kind, start, count):
        number += outcome.tried
        seconds, mebibytes = max(seconds, outcome.seconds), max(mebibytes, outcome.mebibytes)
        for fault in outcome.faults:
            first, times = faults.get(fault.what, (fault.number, 0))
            faults[fault.what] = first, times + 1
    return Result(kind, number, faults, seconds, mebibytes)


def told(result: Result, keep: bool) -> None:
    """Print what came of a kind; write each fault's first input as a case, if asked."""
    worst = f"at most {result.seconds:.2f} s and {result.mebibytes:.0f} MiB"
    print(f"{result.kind}: {result.tried:,} inputs, {worst}", flush=True)
    for what, (first, times) in sorted(result.faults.items()):
        print(f"  {times} x {what}, first #{first}", flush=True)
        if keep:
            print(f"    {kept.keep(result.kind, kinds.made(result.kind, first), what)}", flush=True)


def go_on(kind: str, count: int = TURN) -> None:
    """A turn of a kind, added to its record."""
    before = _row(kind)
    result = tried(kind, before.tried, min(count, COUNT - before.tried))
    told(result, keep=True)
    seconds = max(before.seconds or 0.0, round(result.seconds, 2))
    mebibytes = max(before.mebibytes or 0.0, float(round(result.mebibytes)))
    _record(Row(before.what, PROMISE, before.tried + result.tried, _again(kind), seconds, mebibytes))


def _row(kind: str) -> Row:
    """What is recorded of a kind."""
    what = kinds.KINDS[kind].what
    return next((row for row in recorded("inputs") if row.what == what), Row(what, PROMISE, 0, 0))


def _again(kind: str) -> int:
    """How many kept inputs of a kind are answered wrongly still; prints which."""
    left = 0
    for path in kept.every(kind):
        given = kept.load(path)
        faults = examined(lambda _, given=given: given, 0, 1).faults
        left += bool(faults)
        for fault in faults:
            print(f"{path}: {fault.what}", flush=True)
    return left


def _record(row: Row) -> None:
    """Put a row in place of the recorded one; campaigns of other kinds may be at it, too."""
    RECORDS.mkdir(exist_ok=True)
    place = os.open(RECORDS, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        held = {each.what: each for each in (*recorded("inputs"), row)}
        ordered = [held[kind.what]._asdict() for kind in kinds.KINDS.values() if kind.what in held]
        records.write(ordered, RECORDS / "inputs.csv", PACKAGES)
    finally:
        os.close(place)


def campaigns(chosen: Sequence[str], start: int, count: int, keep: bool) -> bool:
    """Whether a fault was seen among so many inputs of each kind."""
    results = []
    for kind in chosen:
        results.append(tried(kind, start, count))
        told(results[-1], keep)
    return any(result.faults for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=kinds.KINDS, default=list(kinds.KINDS))
    parser.add_argument("--count", type=int, default=TURN, help="of each kind, in each turn")
    parser.add_argument("--start", type=int, default=0, help="number of the first")
    parser.add_argument("--hours", type=float, default=0.0, help="go on with further inputs for so long")
    parser.add_argument("--keep", action="store_true", help="write what is answered wrongly to tests/fixtures/fuzzed/")
    parser.add_argument("--again", action="store_true", help="ask those of tests/fixtures/fuzzed/, and no others")
    parser.add_argument("--record", action="store_true", help="go on with evidence/reliability/inputs.csv")
    asked = parser.parse_args()
    until, start, failed = time.monotonic() + 3600 * asked.hours, asked.start, False
    if asked.record:
        while unfinished := [kind for kind in asked.kind if _row(kind).tried < COUNT]:
            for kind in unfinished:
                go_on(kind, asked.count)
        sys.exit(any(_row(kind).failed for kind in asked.kind))
    if asked.again:
        sys.exit(sum(map(_again, asked.kind)) > 0)
    while start == asked.start or time.monotonic() < until:
        failed = campaigns(asked.kind, start, asked.count, asked.keep) or failed
        start += asked.count
    sys.exit(failed)
