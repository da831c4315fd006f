"""What `train` asks before it starts a run: packages, the starter, the model's folder."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import RecipeError
from validator.doctor import line
from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here.installed import installed
from validator.job.job import Job
from validator.tables import releases
from validator.train import folder, handoff, hub, launch, packages


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What would stop the run on its way to llamafactory-cli."""
    if job is None:
        return
    yield from (line.of("package", each) for each in packages.lacking(job))
    yield from _model(job)
    if "llamafactory" not in installed(node.folders).releases:
        return  # which is told of the packages
    try:
        prepared = handoff.prepare(job, (), node.target.variables if node.target else {})
        launch.ready(_nodes(job, node, prepared.starter), releases.pairs(job.header)[0][0], prepared.starter)
    except RecipeError as err:
        yield Line("error", "start", str(err))


def _model(job: Job) -> Iterator[Line]:
    """What the model's folder or download lacks, else where it lies; what is not here yet is a question of hubs.py."""
    lacking = [*folder.lacking(job), *hub.lacking(job)]
    yield from (line.of("model", each) for each in lacking)
    name = str(job.get("model_name_or_path"))
    place = job.find(name)
    there = place[0] if place else next(iter(hub.downloads(job, name)), None)
    if there and not lacking:
        yield Line("ok", "model", f"`{name}` lies in {there}" if str(there) != name else f"`{name}` is there")


def _nodes(job: Job, node: Node, starter: tuple[str, ...]) -> int:
    """Before a run is queued nothing tells of this node's place among several, and it is not asked for; nor is it where
    the job's script writes the rank into the command."""
    told = "NODE_RANK" in node.environment or ("RDZV_ID" in node.environment and starter == launch.CLI)
    return handoff.size(job)[0] if told else 1
