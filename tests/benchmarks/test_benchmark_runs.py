"""Hours of whole runs beside what is predicted of the recipes that stand for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accuracy_time import runs

from validator.knowledge import tables
from validator.physics import ZERO_3, Band
from validator.run.prediction import predict

ROOT = Path(__file__).parents[2]

RUNS = runs.runs()
KEYS = tables.json_table("arguments")["arguments"]


@pytest.mark.parametrize(
    ("published", "ours", "error", "covered"),
    [
        (10, (8, 12, 14), 0.2, True),
        (10, (11, 12, 14), 0.2, False),
        ([2, 4], (1, 3, 5), 0.0, True),
        ([2, 4], (4.5, 5, 6), 0.25, False),
        ([2, 4], (0.5, 1, 2.5), -0.5, True),
    ],
)
def test_error_and_band_of_a_run(published: Any, ours: tuple[float, ...], error: float, covered: bool) -> None:
    item = runs.Judged({"hours": published}, Band(*ours))
    assert item.error == pytest.approx(error)
    assert item.covered is covered


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["id"])
def test_each_run_is_a_recipe_that_has_hours(run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    described = runs.described(run)
    assert run["set"].keys() <= set(KEYS)
    assert described.model
    assert described.machine
    assert not described.machine_problem
    assert described.header["samples"] == run["samples"]
    ours = runs.judge(run).ours
    assert 0 < ours.low < ours.expected < ours.high


def test_each_run_says_where_its_hours_are_from() -> None:
    assert len({run["id"] for run in RUNS}) == len(RUNS)
    assert all(run["source"] and run["hours"] for run in RUNS)


def test_devices_are_those_of_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DeepSpeed file that is not found would leave a run plain, and the test on hours would not notice."""
    monkeypatch.chdir(ROOT)
    sharded = [run for run in RUNS if "deepspeed" in run["set"]]
    works = [predict(runs.described(run)).workload for run in sharded]
    assert sharded
    assert all(work and work.sharding.strategy == ZERO_3 for work in works)
