"""Up to which size models of the recipe's template would do, where its own is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from validator.job.job import Job
from validator.tables import models
from validator.tables.data import listing
from validator.tables.models import Model


class Sizes(NamedTuple):
    """`largest`: up to which none exceeds the machine; `beyond`: the next, which does. None where there is none."""

    largest: Model | None
    beyond: Model | None


def sizes(job: Job) -> Sizes | None:
    """Which models of the job's template suit its machine; None where none is named, no model has the template, or
    something else keeps memory from being judged."""
    largest = None
    for one in _of_template(job.get("template")):
        verdict = replace(job, values={**job.values, "model_name_or_path": one.name}).verdict
        if verdict == "unknown":
            return None
        if verdict == "exceeds":
            return Sizes(largest, one)
        largest = one
    return Sizes(largest, None) if largest else None


def _of_template(template: object) -> Iterator[Model]:
    """Models of the catalogue with this template, that think or do not, in 16 bits, from the smallest on; those
    that recipes have short names of, where there are any."""
    if not isinstance(template, str):
        return
    own = template.removesuffix("_nothink")
    mentions = (listing("models").mention(f"\n  template: {name}\n") for name in (own, f"{own}_nothink"))
    all_keys = dict.fromkeys(chain.from_iterable(mentions))
    keys = [key for key in all_keys if listing("models")[key]["short"]] or all_keys
    known = {one.parameters: one for one in map(models.model, keys) if not one.quantized}
    yield from (known[parameters] for parameters in sorted(known))
