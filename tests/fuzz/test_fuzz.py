"""Fuzzed inputs: those that were answered wrongly once, and some of every kind, the same on every machine.

`make fuzz` tries others; CONTRIBUTING.md says how."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from random import Random

import pytest

from fuzz import kept, kinds, odd, oracle, trees
from fuzz.campaign import examined
from fuzz.given import ROOT, Input
from fuzz.run import ESCAPED, Answer

# The recorded campaign has the numbers below (benchmarks/robustness/stress_inputs.py).
FIRST = 100_000
FEW, MANY = 4, 200
LIST = Input(("list", "--format", "json"), {})


def asked(*words: str) -> str:
    """What a campaign prints, in a process of its own: this one may hold much memory and run threads."""
    program = [sys.executable, "-m", "benchmarks", "reliability", "stress_inputs", *words]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}" if done.returncode else ""


@pytest.mark.slow
@pytest.mark.process
def test_no_fault() -> None:
    assert asked("--start", str(FIRST), "--count", str(FEW)) == ""


@pytest.mark.nightly
@pytest.mark.process
def test_no_fault_of_those_of_the_day() -> None:
    """What fails is told with its number, by which `make fuzz START=NUMBER COUNT=1` makes it a case."""
    start = FIRST + MANY * date.today().toordinal()
    assert asked("--start", str(start), "--count", str(MANY)) == ""


@pytest.mark.process
def test_what_was_wrong_once() -> None:
    assert asked("--again") == ""


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_number_is_always_the_same_input(kind: str) -> None:
    inputs = [kinds.made(kind, number) for number in (*range(9), *range(9))]
    assert inputs[:9] == inputs[9:]
    assert any(given != inputs[0] for given in inputs)


def test_a_changed_tree_is_a_copy() -> None:
    tree = {"a": [1, {"b": 2}], "c": "x"}
    pool = trees.pool([tree], odd.JSON)
    changed = [trees.mutated(Random(number), tree, pool) for number in range(99)]
    assert tree == {"a": [1, {"b": 2}], "c": "x"}
    assert sum(each != tree for each in changed) > 90


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (Answer(0, "[]", "", "", [], [], 0.1), None),
        (Answer(3, "", "", 'File "x/validator/a/b.py", line 3, in f\nValueError: x', [], [], 0), "a/b.py f"),
        (Answer(ESCAPED, "", "Traceback (most recent call last):\nKeyError: 1", "", [], [], 0), "no module of ours"),
        (Answer(1, "[]", "Traceback (most recent call last):\nKeyError: 1", "", [], [], 0), "traceback: KeyError"),
        (Answer(0, '["\x1b"]', "", "", [], [], 0), r"prints '\x1b'"),
        (Answer(0, "[NaN]", "", "", [], [], 0), "no JSON: NaN"),
        (Answer(0, "[", "", "", [], [], 0), "no JSON"),
        (Answer(0, "[]", "", "", ["x.part"], [], 0), "leaves x.part"),
        (Answer(0, "[]", "", "", [], ["('127.0.0.1', 1)"], 0), "reaches for"),
    ],
)  # fmt: skip
def test_oracle(said: Answer, fault: str | None) -> None:
    seen = list(oracle.faults(LIST, said))
    assert seen == [] if fault is None else fault in seen[0]


def test_an_input_that_ends_the_process_is_named() -> None:
    def make(number: int) -> Input:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return Input(("rule", "PAR001"), {})

    outcome = examined(make, 0, 5)
    assert (outcome.tried, [tuple(fault) for fault in outcome.faults]) == (3, [(2, "ended by SIGKILL")])


def test_what_is_kept_is_made_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    monkeypatch.setattr(kept, "_fails", lambda given, _what: b"\xff!" in given.files.get("b", b""))
    given = Input(("check", "b"), {"a": b"x", "b": b"long and \xff! longer"})
    path = kept.keep("recipe", given, "what it was")
    assert kept.load(path) == Input(("check", "b"), {"b": b"\xff!"})
    assert kept.every() == [path]
