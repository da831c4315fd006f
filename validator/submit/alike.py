"""Runs that are to be one array job: what they have in common, and the resources of the largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from validator.diagnostic import RecipeError, plural
from validator.submit.work import Work


def largest(works: Sequence[Work]) -> Work:
    """A run with the resources of the largest, and what any of them needs to go on. Raises RecipeError where they
    cannot be one array."""
    _admitted(works)
    first = works[0]
    memories, hours = [work.memory_gib for work in works], [work.hours for work in works]
    return replace(
        first,
        name=first.name if len(works) == 1 else first.recipe.parent.name,
        cpus=max(work.cpus for work in works),
        memory_gib=None if None in memories else max(filter(None, memories)),
        hours=None if None in hours else max(filter(None, hours), key=lambda span: span.high),
        every=None if any(work.every is None for work in works) else max(work.every or 0.0 for work in works),
        saving=max(work.saving for work in works),
        overwrites=any(work.overwrites for work in works),
        resuming=tuple(dict.fromkeys(word for work in works for word in work.resuming)),
    )


def _admitted(works: Sequence[Work]) -> None:
    first = works[0]
    for work in works[1:]:
        if _shape(work) != _shape(first):
            both = f"{first.name} is for {_shape(first)}, {work.name} for {_shape(work)}"
            raise RecipeError(f"the jobs of an array are alike, but {both}; submit them one by one")
    for one, other in combinations(works, 2):
        if one.output == other.output:
            raise RecipeError(
                f"{one.name} and {other.name} both write to {one.output}; give each an output_dir of its own"
            )


def _shape(work: Work) -> str:
    """What the jobs of an array have in common, in words."""
    by = "accelerate" if work.accelerate else "torchrun" if work.torchrun else "one process"
    further = (", on folders of their own" if work.local else "") + ("" if work.resumes else ", without resuming")
    return f"{work.nodes} {plural(work.nodes, 'node')} of {work.devices} {work.device.id} by {by}{further}"
