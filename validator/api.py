"""The Python interface that others may rely on: the questions of the command line as typed functions.

A recipe is a path or a name of the catalogue, and `overrides` are LLaMA-Factory's own `KEY=VALUE` words. A machine
is written as on the command line (`2x8xa100-80g`, `2xrtx-4090`); without one the recipe's header block names it.
Sizes are bytes, times are seconds, and every prediction is a 90 % band around what is expected. Every function
raises RecipeError, whose message says what is wrong, where, and what to do. Nothing is printed, and torch is not
imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from validator.advise import explanation
from validator.advise.explanation import Explanation
from validator.catalogue.bundled_recipes import locate_file, locate_recipe
from validator.check import checking
from validator.errors import RecipeError
from validator.finding import FileReport
from validator.physics import Estimate, StepTime
from validator.plan import answer, plan_json
from validator.plan.plan_json import AnswerRows
from validator.recipe.recipe_file import load_with_overrides
from validator.run.calibration import time_correction
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve
from validator.run.training_time import predict_training_time

__all__ = ["RecipeError", "check", "device_memory", "explain", "host_memory", "plan", "step_time"]


def check(recipe: str | Path, *, machine: str | None = None, host_ram_gib: float | None = None) -> FileReport:
    """Return all findings of one recipe, and the memory verdict; or all findings of a DeepSpeed file, an Accelerate
    file or a data set registry. Whatever is wrong with the file itself is among the findings."""
    return checking.check_file(locate_file(str(recipe)).path, machine, host_ram_gib)


def explain(
    recipe: str | Path,
    *,
    machine: str | None = None,
    host_ram_gib: float | None = None,
    overrides: Sequence[str] = (),
) -> Explanation:
    """Return where memory and time of a run go, its verdict, and the nearest changes that fit. The fields are the keys
    of `explain --format json`, in GiB and unrounded. Raises RecipeError if the model or the machine is not known."""
    path, words = locate_recipe(str(recipe), overrides)
    report, run = checking.check_recipe(load_with_overrides(path, words), machine, host_ram_gib)
    return explanation.explain(run, words, report.diagnostics)


def plan(
    model: str,
    machine: str,
    *,
    samples: int | None = None,
    host_ram_gib: float | None = None,
    cutoff_len: int | None = None,
    method: str | None = None,
    stage: str = "sft",
) -> AnswerRows:
    """Return what fits a machine, best first. The fields are the keys of `plan --format json`; if nothing fits, `plans`
    is empty, and `reasons` or `upgrades` say why and what would."""
    found = answer.find_answer(model, machine, samples, host_ram_gib, cutoff_len, method, stage)
    return plan_json.answer_rows(found)


def device_memory(recipe: str | Path, *, machine: str | None = None, overrides: Sequence[str] = ()) -> Estimate:
    """Return the peak of one device in bytes, as its driver's tool would show it, on the device that needs most."""
    memory = predict(_run(recipe, machine, overrides)).device_memory
    if memory is None:
        raise _not_predicted(recipe)
    return memory


def host_memory(recipe: str | Path, *, machine: str | None = None, overrides: Sequence[str] = ()) -> Estimate:
    """Return the peak of one node's main memory in bytes: while loading, training and saving."""
    memory = predict(_run(recipe, machine, overrides)).host_memory
    if memory is None:
        raise _not_predicted(recipe)
    return memory


def step_time(recipe: str | Path, *, machine: str | None = None, overrides: Sequence[str] = ()) -> StepTime:
    """Return the seconds of one optimizer step, by term, corrected by what `calibrate` measured on the machine."""
    run = _run(recipe, machine, overrides)
    time = predict_training_time(run, correction=time_correction(str(run.machine)))
    if time is None:
        raise _not_predicted(recipe)
    return time.step


def _run(recipe: str | Path, machine: str | None, overrides: Sequence[str]) -> RunSettings:
    path, words = locate_recipe(str(recipe), overrides)
    run = resolve(load_with_overrides(path, words), machine)
    if run.machine_problem:
        raise RecipeError(run.machine_problem)
    return run


def _not_predicted(recipe: str | Path) -> RecipeError:
    return RecipeError(f"`{recipe}`: its model or its machine is not known, or nothing trains; `check` says which")
