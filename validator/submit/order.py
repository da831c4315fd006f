"""What an engine makes of runs: a text, what is to be said of it, and the way to hand it over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.job.job import Job
from validator.submit.work import Work


class Run(NamedTuple):
    """A checked job, the user's overrides, and what is to be run."""

    job: Job
    overrides: Sequence[str]
    work: Work


def alone(runs: Sequence[Run]) -> Run:
    """The one run. Raises RecipeError where there are several: array jobs are SLURM's."""
    if len(runs) > 1:
        raise RecipeError(f"{len(runs)} recipes are an array job, which SLURM alone has; submit them one by one")
    return runs[0]


class Order(NamedTuple):
    """`text` is the job as the engine reads it, `notes` are for whoever submits it; `hand` gives it to the engine's own
    client, yields lines that say how to follow it, and raises RecipeError where it is refused."""

    text: str
    notes: Sequence[str]
    hand: Callable[[], Iterable[str]]
