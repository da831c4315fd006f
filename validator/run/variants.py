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
from validator.run.prediction import Job

# A value that a change writes; None takes the key away.
ArgumentValue = bool | int | float | str | None
ArgumentChanges = Mapping[str, ArgumentValue]


def with_arguments(job: Job, settings: ArgumentChanges) -> Job:
    """Return the job with the settings, as if the catalogue's DeepSpeed files were there. It is kept on the job, as the
    same settings are judged for several questions."""
    key = tuple(settings.items())
    if key not in job.variants:
        workspace = job.workspace.with_catalogue(job.data.registry)
        job.variants[key] = replace(job.updated(settings), workspace=workspace)
    return job.variants[key]


class FittingSizes(NamedTuple):
    """`largest`: up to which none exceeds the machine; `beyond`: the next, which does. None where there is none."""

    largest: Model | None
    beyond: Model | None


def model_sizes_that_fit(job: Job) -> FittingSizes | None:
    """Which models of the job's template suit its machine; None where none is named, no model has the template, or
    something else keeps memory from being judged."""
    largest = None
    for one in _models_of_template(job.args.get("template")):
        verdict = job.updated({"model_name_or_path": one.name}).verdict
        if verdict == "unknown":
            return None
        if verdict == "exceeds":
            return FittingSizes(largest, one)
        largest = one
    return FittingSizes(largest, None) if largest else None


def _models_of_template(template: object) -> Iterator[Model]:
    """Models of the catalogue with this template, that think or do not, in 16 bits, from the smallest on; those
    that recipes have short names of, where there are any."""
    if not isinstance(template, str):
        return
    own = template.removesuffix("_nothink")
    mentions = (yaml_table("models").mention(f"\n  template: {name}\n") for name in (own, f"{own}_nothink"))
    all_keys = dict.fromkeys(chain.from_iterable(mentions))
    keys = [key for key in all_keys if yaml_table("models")[key]["short"]] or all_keys
    known = {one.parameters: one for one in map(models.find_model, keys) if not one.quantized}
    yield from (known[parameters] for parameters in sorted(known))
