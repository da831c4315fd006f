"""Public threads about runs that did not start, hung or were killed: what `check` and `doctor` say of the machines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.threads import read, said

THREADS = read()


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: str(thread["thread"]))
def test_what_is_said_of_a_thread(thread: dict[str, Any], tmp_path: Path) -> None:
    """Where nothing is seen, nothing else may stand there as an error, which would be a false alarm."""
    told = said(thread["machine"], tmp_path)
    for command, words in thread.get("says", {}).items():
        assert words in told[command]
    if "unseen" in thread:
        assert [line for line in told["doctor"].splitlines() if line.startswith("error")] == []


@pytest.mark.parametrize(
    "thread", [each for each in THREADS if "doctor" in each.get("says", {})], ids=lambda thread: str(thread["thread"])
)
def test_the_same_run_on_a_sound_machine(thread: dict[str, Any], tmp_path: Path) -> None:
    told = said({key: value for key, value in thread["machine"].items() if key == "recipe"}, tmp_path)["doctor"]
    assert thread["says"]["doctor"] not in told
    assert [line for line in told.splitlines() if line.startswith("error")] == []


def test_a_sound_machine_is_silent(tmp_path: Path) -> None:
    """What the threads are told is told of nothing sound."""
    usual = {"recipe": {"machine": "2x8xa100-80g"}, "environment": {"NNODES": "2", "NODE_RANK": "0"}}
    told = said({**usual, "packages": {"torch": "2.8.0+cu128", "transformers": "5.6.0"}}, tmp_path)
    for thread in THREADS:
        for command, words in thread.get("says", {}).items():
            assert words not in told[command]
    assert "0 errors, 0 warnings" in told["check"]
    assert [line for line in told["doctor"].splitlines() if not line.startswith("ok")] == ["node: 0 errors, 0 warnings"]


def test_each_thread_has_a_verdict_once() -> None:
    assert all(("says" in thread) != ("unseen" in thread) for thread in THREADS)
    assert max(Counter(thread["thread"] for thread in THREADS).values()) == 1
