"""A run on this machine."""

from __future__ import annotations

from validator.diagnostic import RecipeError
from validator.here.installed import installed
from validator.job.job import Job
from validator.tables import releases
from validator.train import handoff, launch
from validator.train.handoff import Handoff


def start(job: Job, prepared: Handoff) -> int:
    """Run llamafactory-cli, or accelerate, and return its exit code. Raises RecipeError as `admitted` does."""
    admitted(job, prepared)
    return launch.run(prepared.process)


def admitted(job: Job, prepared: Handoff) -> None:
    """Raises RecipeError where the packages installed here are not of the recipe's releases, or this machine cannot
    start it."""
    for problem in releases.outside(job.header, installed().among(releases.FIELDS)):
        raise RecipeError(problem)
    launch.ready(handoff.size(job)[0], releases.pairs(job.header)[0][0], prepared.starter)
