"""Every recipe trains: a shrunk twin of each combination of class, template, stage, method, optimizer and ZeRO file.

All are recorded in benchmarks/evidence/training/twins.csv; a cross-section trains here, at a commit a part of it.
`TWINS=all pytest --whole tests/catalogue/test_twins.py` trains every one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.every import every
from support.sampling import chosen
from training_twins import report as twins

ROOT = Path(__file__).parents[2]

FOUND = twins.combinations()
ROWS = {row.combination: row for row in twins.recorded()}
TRAINED = [each for each in FOUND if twins.reason(each) is None]
NOW = TRAINED if os.environ.get("TWINS") == "all" else twins.cross_section(FOUND)
# What a twin is made of and trained with.
MAKERS = ["benchmarks/training_twins/*", "benchmarks/forks.py", "release/constraints.txt"]


@every(FOUND)
def test_each_combination_is_recorded_with_its_outcome(each: twins.Combination) -> None:
    why = twins.reason(each)
    assert ROWS[each].result == (f"parsed only: {why}" if why else "trained")


def test_nothing_is_recorded_that_no_recipe_has() -> None:
    assert set(ROWS) == set(FOUND)


def test_every_recipe_belongs_to_a_combination() -> None:
    covered = {Path(job.workspace.recipe).stem for jobs in FOUND.values() for job in jobs}
    assert covered == {path.stem for path in (ROOT / "recipes").glob("*.yaml")} - {"tiny-cpu-lora"}


def test_only_a_few_combinations_cannot_run_on_a_cpu() -> None:
    assert len(TRAINED) > 0.9 * len(FOUND)


def test_the_cross_section_has_every_part() -> None:
    for name in ("model_type", "template", "method", "optimizer", "engine"):
        assert {getattr(each, name) for each in twins.cross_section(FOUND)} == {getattr(each, name) for each in TRAINED}


def test_a_twin_keeps_what_decides_and_shrinks_the_rest() -> None:
    (job,) = (
        job for jobs in FOUND.values() for job in jobs if Path(job.workspace.recipe).stem == "qwen3-8b-3090x2-lora"
    )
    made = twins.twin(job, Path("folder"))
    assert {key: made[key] for key in ("stage", "finetuning_type", "template")} == {
        key: job.args.values[key] for key in ("stage", "finetuning_type", "template")
    }
    assert (made["max_steps"], made["cutoff_len"], made["dataset"]) == (2, 64, "sft")


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Result by recipe of those whose turn it is, trained now; the evidence itself is not touched."""
    written = tmp_path_factory.mktemp("twins") / "twins.csv"
    names = chosen(request.session, "test_trains_for_two_steps", "recipe")
    command = [sys.executable, "-m", "benchmarks", "training", "report", "--record", *names]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TWINS_FILE": str(written)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {row.recipe: row.result for row in twins.recorded(written)}


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.sample(one_in=12, whole_for=MAKERS)
@pytest.mark.parametrize("recipe", [Path(FOUND[each][0].workspace.recipe).stem for each in NOW])
def test_trains_for_two_steps(recipe: str, outcomes: dict[str, str]) -> None:
    assert outcomes[recipe] == "trained"
