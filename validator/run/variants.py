"""A run with other arguments, judged by the same formulas and rules; and the largest model with the same template that
still fits the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from validator.knowledge import models
from validator.knowledge.models import Model
from validator.knowledge.tables import yaml_table
from validator.run.prediction import predict
from validator.run.settings import RunSettings

# A value that a change writes; None takes the key away.
ArgumentValue = bool | int | float | str | None
ArgumentChanges = Mapping[str, ArgumentValue]


def with_arguments(run: RunSettings, settings: ArgumentChanges) -> RunSettings:
    """Return a copy of the run with other arguments. The copy also finds the DeepSpeed files of the catalogue, which
    the arguments may name. It is stored on `run`, because several callers ask for the same arguments."""
    key = tuple(settings.items())
    if key not in run.derived:
        workspace = run.workspace.with_catalogue(run.data.registry)
        run.derived[key] = replace(run.updated(settings), workspace=workspace)
    changed: RunSettings = run.derived[key]
    return changed


class FittingSizes(NamedTuple):
    """Two models around a machine's memory limit. `largest`: the largest model that does not exceed the limit;
    `beyond`: the next larger model, which exceeds it. Each is None if there is no such model."""

    largest: Model | None
    beyond: Model | None


def model_sizes_that_fit(run: RunSettings) -> FittingSizes | None:
    """Return the largest model with the run's template that does not exceed the machine's memory, and the next larger
    one. None if the recipe names no template, no known model has the template, or memory cannot be predicted."""
    largest = None
    for one in _models_of_template(run.args.get("template")):
        verdict = predict(run.updated({"model_name_or_path": one.name})).verdict
        if verdict == "unknown":
            return None
        if verdict == "exceeds":
            return FittingSizes(largest, one)
        largest = one
    return FittingSizes(largest, None) if largest else None


def _models_of_template(template: object) -> Iterator[Model]:
    """Yield the known 16-bit models with this template, smallest first. `x` and `x_nothink` count as the same template.
    If some of the models have a short name for recipes, only these models are yielded."""
    if not isinstance(template, str):
        return
    thinking_template = template.removesuffix("_nothink")
    mentions = (
        yaml_table("models").mention(f"\n  template: {name}\n")
        for name in (thinking_template, f"{thinking_template}_nothink")
    )
    all_keys = dict.fromkeys(chain.from_iterable(mentions))
    keys = [key for key in all_keys if yaml_table("models")[key]["short"]] or all_keys
    by_size = {one.parameters: one for one in map(models.find_model, keys) if not one.quantized}
    yield from (by_size[parameters] for parameters in sorted(by_size))
