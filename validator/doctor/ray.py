"""Ray, where the environment hands the run to it."""

from __future__ import annotations

from collections.abc import Iterator

from validator.doctor import line
from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import host
from validator.job import ray
from validator.job.job import Job
from validator.train import ray as launching


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """What it lacks on this node, or that its reservation can be given."""
    if job is None or not ray.on():
        return
    cpus = host.cpus(node.root)
    lacking = [*launching.lacking(job, cpus)]
    yield from (line.of("Ray", shortage) for shortage in lacking)
    if not lacking:
        yield Line("ok", "Ray", f"{ray.promised(job) or cpus} CPUs, of which {ray.CPUS} are reserved for each device")
