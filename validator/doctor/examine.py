"""All that is to say of this machine, for one run or by itself."""

from __future__ import annotations

from dataclasses import dataclass

from validator.diagnostic import RecipeError
from validator.doctor import checks
from validator.doctor.line import Line, State
from validator.doctor.node import Node
from validator.here import machine as this
from validator.job import job as jobs
from validator.job.job import Job
from validator.read.recipe import Document
from validator.train import target as targets


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
    job, node = wanted(document, machine) if document else (None, seen(Node()))
    told = tuple(checks.lines(job, node))
    name = str(job.machine) if job and job.machine else None
    return Diagnosis(document.path if document else None, name, told, _count(told, "error"), _count(told, "warning"))


def wanted(document: Document, machine: str | None) -> tuple[Job, Node]:
    """The job as it would run here, and this machine with what the job gets of its devices, or why it gets none."""
    job = jobs.resolve(document, machine)
    node = Node(assumed=None if job.on_cpu else job.machine)
    try:
        target = targets.named(machine, job) if machine else targets.target(job, dry=False)
    except RecipeError as err:
        return job, seen(node._replace(refused=str(err)))
    there = jobs.resolve(document, target.machine, target.host_ram_gib)
    return there, node._replace(target=target, here=target.here) if target.here else seen(node._replace(target=target))


def seen(node: Node) -> Node:
    """With the devices, or what the driver's program says instead."""
    try:
        return node._replace(here=this.look())
    except RecipeError as err:
        return node._replace(fault=str(err).removesuffix(f"; {this.MEND}"))


def _count(lines: tuple[Line, ...], state: State) -> int:
    return sum(line.state == state for line in lines)
