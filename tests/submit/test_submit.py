"""What an engine is to run: `Work`, from a recipe's job."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.engine_jobs import RECIPE

from validator.errors import RecipeError
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import resolve
from validator.submit.cluster_job import ClusterJob, build_cluster_job
from validator.submit.site_file import Site


def made(more: str = "", machine: str = "2x8xa100-80g", ram: int = 1024, **site: Any) -> ClusterJob:
    """Of the recipe with further values, or others."""
    keys = {line.partition(":")[0] for line in more.splitlines()}
    kept = [line for line in RECIPE.format(machine=machine, ram=ram).splitlines() if line.partition(":")[0] not in keys]
    document = parse_recipe("mine.yaml", "\n".join([*kept, more]))
    assert document.readable
    return build_cluster_job(resolve(document), Site(**site))


def test_says_what_is_run_and_what_to_ask_for() -> None:
    run = made()
    assert (run.name, run.nodes, run.devices, run.device.id) == ("mine", 2, 8, "a100-80g")
    assert run.recipe == Path("mine.yaml").absolute()
    assert run.output == Path("saves/mine").absolute()
    assert f"output_dir={Path('saves/mine').absolute()}" in run.overrides
    assert run.environment == {}
    assert run.launcher == "torchrun"
    assert run.hours
    assert run.hours.low < run.hours.expected < run.hours.high
    assert run.pip_requirements[0].startswith("llamafactory==")


@pytest.mark.parametrize(
    ("machine", "more", "torchrun"),
    [
        ("1xa100-80g", "", False),
        ("1xa100-80g", "deepspeed: deepspeed/ds_z2.json\n", True),
        ("2xa100-80g", "", True),
        ("2x1xcpu", "", True),
    ],
)
def test_one_process_alone_needs_no_torchrun(machine: str, more: str, torchrun: bool) -> None:
    assert (made(more, machine).launcher == "torchrun") is torchrun


def test_memory_is_asked_for_with_headroom_unless_it_is_nearly_all() -> None:
    asked = made().memory_gib
    assert asked
    assert asked < 0.9 * 1024
    assert made(ram=asked).memory_gib is None
    assert made(machine="1xgb10-128g").memory_gib is None  # out of which the device's comes, too


@pytest.mark.parametrize(
    ("more", "every"),
    [
        ("save_steps: 10\n", True),
        ("save_strategy: epoch\nnum_train_epochs: 3\n", True),
        ("save_strategy: epoch\nnum_train_epochs: 1\n", False),
        ("save_strategy: 'no'\n", False),
        ("save_steps: 0.1\n", True),
        ("save_steps: 100000\n", False),
    ],
)
def test_how_far_checkpoints_lie_apart(more: str, every: bool) -> None:
    run = made(more)
    assert run.checkpoint_interval_s
    assert math.isfinite(run.checkpoint_interval_s) is every
    if "save_steps: 10\n" in more:
        twice = made("save_steps: 20\n").checkpoint_interval_s
        assert twice
        assert run.checkpoint_interval_s == pytest.approx(twice / 2)


@pytest.mark.parametrize(
    ("more", "resumes"),
    [
        ("", True),
        ("finetuning_type: full\n", True),
        ("stage: rm\n", False),
        ("save_only_model: true\n", False),
        ("stage: ppo\nreward_model: saves/reward\n", False),
    ],
)
def test_which_runs_go_on_from_a_checkpoint(more: str, resumes: bool) -> None:
    assert made(more).can_resume is resumes


def test_a_run_that_was_stopped_goes_on_from_its_own_checkpoint() -> None:
    assert made().resume_overrides == ()
    assert not made().discards_old_checkpoints
    again = made("overwrite_output_dir: true\nresume_from_checkpoint: saves/other/checkpoint-3\n")
    assert again.discards_old_checkpoints
    assert again.resume_overrides == ("overwrite_output_dir=false", "resume_from_checkpoint=null")


@pytest.mark.parametrize(
    ("more", "stays"),
    [
        ("", False),
        ("resume_from_checkpoint: saves/mine/checkpoint-3\n", True),
        ("adapter_name_or_path: saves/first,saves/mine\n", True),
        ("adapter_name_or_path: saves/mine-first\n", False),
    ],
)
def test_what_a_run_starts_from_is_not_set_aside(
    more: str, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine/checkpoint-3", "mine-first", "first"):
        (tmp_path / "saves" / name).mkdir(parents=True)
    assert made(f"overwrite_output_dir: true\n{more}").discards_old_checkpoints is not stays


def test_without_a_machine_there_is_nothing_to_ask_for() -> None:
    document = parse_recipe("mine.yaml", RECIPE.partition("# ///\n")[2].format())
    with pytest.raises(RecipeError, match="names no machine; say `--machine 2x8xa100-80g`"):
        build_cluster_job(resolve(document), Site())


def test_a_variable_that_the_user_has_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "HCCL_CONNECT_TIMEOUT"
    assert made(machine="2x8xascend-910b-64g").environment[name] == "1800"
    monkeypatch.setenv(name, "7200")
    assert made(machine="2x8xascend-910b-64g").environment[name] == "7200"
