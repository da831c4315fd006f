"""No command prints what a terminal or a CI log would obey, whatever strangers chose for names and values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from robustness import hostile_words
from support.program import answer

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/output/*", "validator/escaping.py"])


def test_nothing_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    codes = set()
    for what, words in hostile_words.commands(hostile_words.lay(tmp_path, seed=0)):
        if what == "doctor":  # which tries the disk
            continue
        done = answer(*words, cwd=tmp_path)
        code, out, err = done.returncode, done.stdout, done.stderr
        assert code in (0, 1, 2), (words, err)
        assert [hostile_words.obeyed(each) for each in (out, err)] == ["", ""], (what, words)
        if out and ("json" in words or "sarif" in words):
            json.loads(out, parse_constant=pytest.fail)
        codes.add((what, code))
    # Some of it went well: what is shown is not only that nothing could be read.
    assert {("check", 1), ("explain", 0), ("diff", 0), ("submit --dry-run", 0), ("train --dry-run", 0)} <= codes


# fmt: off
OBEYED = (
    (b"a\x1b[31m", True), (b"a\rb", True), (b"\xc2\x9b", True), ("a\u202e".encode(), True), (b"a\n  ::error::x", True),
    (b"##[error]x", True), ("\u200d::error::x".encode(), True), (b"::error title=a::x", True),
    (b"::error file=a,line=1,col=1,title=x::x", False), (b"a\n\tb \\x1b", False), (b"x ::error::y", False),
    ("微\u200d".encode(), False), (b"## [a]", False),
)
# fmt: on


@pytest.mark.parametrize(("output", "is_obeyed"), OBEYED)
def test_the_test_sees_what_is_obeyed(output: bytes, is_obeyed: bool) -> None:
    assert bool(hostile_words.obeyed(output)) is is_obeyed


@pytest.mark.parametrize(
    "words",
    [
        *(("list", f"--host-ram={number}") for number in ("nan", "inf", "1e400", "-1", "9" * 401)),
        *(("plan", "--machine=1xa100-80g", f"--samples={number}") for number in ("9" * 401, "9" * 5000, "nan", "0")),
        *(("plan", "--machine=1xa100-80g", f"--cutoff-len={number}") for number in ("9" * 401, "1e3", "-1")),
        *(("submit", "qwen3-8b-a100-lora", "--to=slurm", f"--hours={number}") for number in ("nan", "inf", "1e400")),
    ],
    ids=lambda words: f"{words[-1]:.30}",
)
def test_a_number_that_is_none_is_wrong_usage(words: Sequence[str]) -> None:
    done = answer(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Error: " in done.stderr
