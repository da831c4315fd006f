"""A run on this machine."""

from __future__ import annotations

from pathlib import Path

from validator.diagnostic import RecipeError
from validator.here.installed import installed
from validator.job import resumption, saves
from validator.job.job import Job
from validator.tables import releases
from validator.train import handoff, launch, trainer
from validator.train.handoff import Handoff

# Seconds to end in beside a save: torchrun takes 30 of them where a process does not heed it.
ENDING = 60.0


def start(job: Job, prepared: Handoff, seconds: float | None = None) -> int:
    """Run llamafactory-cli, or accelerate, and return its exit code; 128 + n where signal n ended it within `seconds`,
    by default those of `grace`. Raises RecipeError as `admitted` does."""
    admitted(job, prepared)
    output = prepared.output or Path(resumption.UNNAMED).absolute()
    return trainer.run(prepared.process, grace(job) if seconds is None else seconds, output)


def grace(job: Job) -> float:
    """Seconds in which a run that is told to end has ended: what a checkpoint takes at most to be written, and a
    minute."""
    return saves.seconds(job) + ENDING


def admitted(job: Job, prepared: Handoff) -> None:
    """Raises RecipeError where the packages installed here are not of the recipe's releases, or this machine cannot
    start it."""
    for problem in releases.outside(job.header, installed().among(releases.FIELDS)):
        raise RecipeError(problem)
    launch.ready(handoff.size(job)[0], releases.pairs(job.header)[0][0], prepared.starter)
