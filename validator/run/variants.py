"""A run with other arguments, judged by the same formulas and rules; and the largest model of the same template that
still fits its machine."""

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
    """Return the run with other arguments, as if the catalogue's DeepSpeed files existed. The result is kept on the
    run, because several questions ask for the same arguments."""
    key = tuple(settings.items())
    if key not in run.derived:
        workspace = run.workspace.with_catalogue(run.data.registry)
        run.derived[key] = replace(run.updated(settings), workspace=workspace)
    changed: RunSettings = run.derived[key]
    return changed


class FittingSizes(NamedTuple):
    """Models around the limit of a machine. `largest`: the largest model that does not exceed it; `beyond`: the next
    larger one, which does. None if there is no such model."""

    largest: Model | None
    beyond: Model | None


def model_sizes_that_fit(run: RunSettings) -> FittingSizes | None:
    """Return the models of the run's template at the limit of its machine; None if no template is named, no model has
    it, or memory cannot be judged for another reason."""
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
    """Yield the catalogue's 16-bit models of this template, with or without thinking, smallest first; only those with a
    short name for recipes, if there are any."""
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
