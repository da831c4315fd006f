"""The two steps of a smoke run: what they change of a recipe, and what they go through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from real.test_training import MODEL, ROOT, train

from validator.cli import group
from validator.errors import RecipeError
from validator.launch import short_run
from validator.recipe.recipe_file import parse_recipe, with_overrides
from validator.run.settings import resolve

BASE = """# /// recipe
# machine: 2xa100-80g
# ///
stage: sft
do_train: true
dataset: x
cutoff_len: 1000
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
output_dir: saves/x
"""
EVALUATES = "eval_strategy: epoch\nper_device_eval_batch_size: 16\n"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def changed(text: str = "") -> dict[str, Any]:
    """The values that a smoke run has, as LLaMA-Factory would read its overrides."""
    document = with_overrides(parse_recipe("x.yaml", BASE), [line.replace(": ", "=") for line in text.splitlines()])
    smoked = with_overrides(document, short_run.smoke_overrides(resolve(document)))
    return {key: value for key, value in smoked.values.items() if value != document.values.get(key)}


ALWAYS = {
    **{"max_steps": 2, "save_steps": 2, "logging_steps": 1, "logging_strategy": "steps", "report_to": "none"},
    **{"output_dir": "saves/x-smoke", "overwrite_output_dir": True},
}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        # Two steps of 4 x 8 x 2 samples, and the 8 x 2 that an evaluation would take.
        ("", {"max_samples": 144}),
        ("max_samples: 100\n", {}),
        ("max_samples: 100000\n", {"max_samples": 144}),
        # Each sequence of 1,000 tokens is packed from ten samples.
        ("packing: true\n", {"max_samples": 1440}),
        ("packing: true\ncutoff_len: 32768\n", {"max_samples": 10_000}),
        ("per_device_train_batch_size: 1\ngradient_accumulation_steps: 1\n", {"max_samples": 64}),
        # What is saved and evaluated, and when.
        ("save_strategy: epoch\n", {"max_samples": 144, "save_strategy": "steps"}),
        ("save_strategy: best\n", {"max_samples": 144}),
        ("save_strategy: 'no'\n", {"max_samples": 144}),
        (
            f"{EVALUATES}eval_dataset: y\neval_delay: 3\nload_best_model_at_end: true\nearly_stopping_steps: 1\n",
            {"max_samples": 160, "eval_strategy": "steps", "eval_steps": 2, "eval_delay": 0},
        ),
        # A share of what is left, a number where the data have no end.
        (f"{EVALUATES}val_size: 0.01\n",
         {"max_samples": 160, "val_size": 0.2, "eval_strategy": "steps", "eval_steps": 2}),
        ("val_size: 8\n", {"max_samples": 136, "val_size": 0.059}),
        ("val_size: 90\nmax_samples: 20\n", {"val_size": 0.5}),
        ("streaming: true\nval_size: 100\n", {"val_size": 16, "buffer_size": 144}),
        # Text is written for one batch on each device.
        ("predict_with_generate: true\ndo_eval: true\neval_dataset: y\n", {"max_samples": 16}),
        ("predict_with_generate: true\ndo_predict: true\neval_dataset: y\nper_device_eval_batch_size: 1\n",
         {"max_samples": 8}),
        # What would reach beyond the smoke run.
        ("tokenized_path: saves/tokens\n", {"max_samples": 144, "tokenized_path": None}),
        ("push_to_hub: true\nuse_swanlab: true\nresume_from_checkpoint: saves/x/checkpoint-9\n",
         {"max_samples": 144, "push_to_hub": False, "use_swanlab": False, "resume_from_checkpoint": None}),
    ],
)  # fmt: skip
def test_what_is_changed(text: str, values: dict[str, Any]) -> None:
    assert changed(text) == ALWAYS | values


def test_tokenized_data_are_taken_where_they_lie() -> None:
    Path("saves/tokens").mkdir(parents=True)
    Path("saves/tokens/state.json").write_text("{}")
    assert "tokenized_path" not in changed("tokenized_path: saves/tokens\n")


def test_checkpoints_of_other_runs_are_not_rotated_away() -> None:
    Path("saves/x-smoke/checkpoint-2").mkdir(parents=True)
    job = resolve(parse_recipe("x.yaml", BASE))
    short_run.smoke_overrides(job)
    Path("saves/x-smoke/checkpoint-300").mkdir()
    with pytest.raises(RecipeError, match="`saves/x-smoke` is not a smoke run's: it holds checkpoint-300; rename it"):
        short_run.smoke_overrides(job)


def test_a_folder_without_a_name_is_the_trainers() -> None:
    assert "output_dir=trainer_output-smoke" in short_run.smoke_overrides(
        resolve(parse_recipe("x.yaml", "stage: sft\n"))
    )


@pytest.mark.parametrize(
    ("left", "says"),
    [
        ({}, "nothing failed in 31 s (all)"),
        ({"train_runtime": 6.04, "eval_runtime": 0.5}, "in 31 s (2 steps 6.0 s, evaluation 0.5 s)"),
    ],
)
def test_what_is_told_of_it(left: dict[str, float], says: str, tmp_path: Path) -> None:
    if left:
        (tmp_path / "all_results.json").write_text(json.dumps(left))
    assert says in short_run.smoke_summary(tmp_path, 31.4)
    (tmp_path / "checkpoint-2").mkdir()
    assert "checkpoint-2)" in short_run.smoke_summary(tmp_path, 31.4)


def test_it_is_judged_as_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose steps are never evaluated: told, although the smoke run evaluates."""
    monkeypatch.chdir(ROOT)
    recipe = str(ROOT / "recipes" / "tiny-cpu-lora.yaml")
    words = ("val_size=0.1", "eval_strategy=steps", "eval_steps=9000", "max_steps=20")
    done = CliRunner().invoke(group, ["train", "--dry-run", "--smoke", "--machine", "1xcpu", recipe, *words])
    assert done.exit_code == 0, done.output
    assert "eval_steps=2" in done.stdout
    assert "9000" in done.stderr


@pytest.mark.sample(one_in=3, whole_for=["release/constraints.txt", "validator/launch/*"])
@pytest.mark.training
@pytest.mark.parametrize(
    "words",
    [
        ("val_size=0.1", "eval_strategy=epoch", "save_strategy=epoch", "load_best_model_at_end=true", "eval_delay=1"),
        ("stage=pt", "eval_dataset=tiny_demo", "do_eval=true", "tokenized_path=tokens", "dataloader_drop_last=true"),
    ],
)
def test_it_trains_evaluates_and_saves(words: tuple[str, ...], tmp_path: Path) -> None:
    run = train(tmp_path, ("--smoke", f"model_name_or_path={MODEL}", *words))
    assert run.exit_code == 0, run.text[-3000:]
    assert not run.output.exists()
    assert not (tmp_path / "tokens").exists()
    assert (tmp_path / "out-smoke" / "checkpoint-2" / "trainer_state.json").is_file()
    assert "eval_loss" in json.loads((tmp_path / "out-smoke" / "all_results.json").read_text())
    assert "smoke run: nothing failed" in run.text
