"""All that is to say of this machine, for one run or by itself."""

from __future__ import annotations

from dataclasses import dataclass

from validator.diagnostic import RecipeError
from validator.doctor import checks
from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.job import job as jobs
from validator.job.job import Job
from validator.read.recipe import Document
from validator.train import target as targets
from validator.train.target import Target


@dataclass(frozen=True)
class Diagnosis:
    """What was looked at; `recipe` and `machine` are those that the lines are for, None where no run is asked about."""

    recipe: str | None
    machine: str | None
    lines: tuple[Line, ...]
    errors: int
    warnings: int


def examine(document: Document | None, machine: str | None = None) -> Diagnosis:
    """Look at this machine; with a recipe, for its run, on `machine` where one is named. The run gets of the devices
    what `train` would give it."""
    job, target, refused = _wanted(document, machine) if document else (None, None, [])
    told = (*refused, *checks.lines(job, Node(target=target)))
    name = str(job.machine) if job and job.machine else None
    return Diagnosis(document.path if document else None, name, told, _count(told, "error"), _count(told, "warning"))


def _wanted(document: Document, machine: str | None) -> tuple[Job, Target | None, list[Line]]:
    """The job as it would run here, and what it gets of the devices; or why it gets none."""
    job = jobs.resolve(document, machine)
    try:
        target = targets.named(machine, job) if machine else targets.target(job, dry=False)
    except RecipeError as err:
        return job, None, [Line("error", "devices of the run", str(err))]
    return jobs.resolve(document, target.machine, target.host_ram_gib), target, []


def _count(lines: tuple[Line, ...], state: State) -> int:
    return sum(line.state == state for line in lines)
