"""All that is to say of this machine, for one run or by itself."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass

from validator.diagnostic import RecipeError
from validator.doctor import checks
from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import machine as this
from validator.job import job as jobs
from validator.job.job import Job
from validator.read.recipe import Document
from validator.tables import machines
from validator.train import target as targets


@dataclass(frozen=True)
class Diagnosis:
    """What was looked at, on the node `host`; `recipe` and `machine` are those that the lines are for, None where no
    run is asked about."""

    host: str
    recipe: str | None
    machine: str | None
    lines: tuple[Line, ...]
    errors: int
    warnings: int


def examine(document: Document | None, machine: str | None = None) -> Diagnosis:
    """Look at this machine; with a recipe, for its run, which gets of the devices what `train` would give it. Where
    `machine` is named, the run is meant for that one, or this should be it."""
    if document is None:
        assumed = machines.machine(machine) if machine else None
        return _diagnosis(None, None, checks.lines(None, seen(Node(assumed=assumed))))
    from validator.doctor import recipe  # with numpy, which a machine by itself does not wait for

    job, node = wanted(document, machine)
    ram = node.target.host_ram_gib if node.target else None
    judged = recipe.lines(document, _here(job, node) or machine, ram)
    return _diagnosis(document, job, (*judged, *recipe.rows(job), *checks.lines(job, node)))


def _here(job: Job, node: Node) -> str | None:
    """The machine that the recipe is judged by: as many of the devices here as the run takes, of whatever kind."""
    if node.target is None or node.here is None or job.machine is None or job.on_cpu:
        return node.target.machine if node.target else None
    return f"{job.machine.nodes}x{job.machine.devices}x{node.here.device}"


def _diagnosis(document: Document | None, job: Job | None, lines: Iterable[Line]) -> Diagnosis:
    told = tuple(lines)
    states = [line.state for line in told]
    name = str(job.machine) if job and job.machine else None
    path = document.path if document else None
    return Diagnosis(platform.node(), path, name, told, states.count("error"), states.count("warning"))


def wanted(document: Document, machine: str | None) -> tuple[Job, Node]:
    """The job as it would run here, and this machine with what the job gets of its devices, or why it gets none."""
    job = jobs.resolve(document, machine)
    node = Node(assumed=None if job.on_cpu else job.machine)
    try:
        target = targets.named(machine, job) if machine else targets.target(job, dry=False)
    except RecipeError as err:
        return job, seen(node._replace(refused=str(err)))
    there = jobs.resolve(document, target.machine, target.host_ram_gib)
    node = node._replace(target=target, here=target.here)
    return there, node if target.here else seen(node)


def seen(node: Node) -> Node:
    """With the devices, or what the driver's program says instead."""
    try:
        return node._replace(here=this.look())
    except RecipeError as err:
        return node._replace(fault=str(err).removesuffix(f"; {this.MEND}"))
