"""Processors that the run may use: of a batch job without `--cpus-per-task` that is one."""

from __future__ import annotations

from collections.abc import Iterator

from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import host
from validator.job import processors
from validator.job.job import Job

_WHAT = "processors"


def lines(job: Job | None, node: Node) -> Iterator[Line]:
    """Those that this process is bound to, against processes, their loader workers and the tokenizers."""
    there = host.cpus(node.root)
    if job is None:
        yield Line("ok", _WHAT, str(there))
        return
    wanted = _wanted(job)
    if there >= wanted:
        yield Line("ok", _WHAT, str(there), str(wanted))
        return
    remedy = "devices wait for them: `--cpus-per-task` of a batch job, the CPU limit of a container"
    yield Line("warning", _WHAT, str(there), str(wanted), remedy)


def _wanted(job: Job) -> int:
    """No more than the devices' usual server has; `submit` asks for as many."""
    devices = job.machine.devices if job.machine and not job.on_cpu else 1
    wanted = processors.feeding(job, devices)
    return processors.at_most(wanted, job.machine.device, devices) if job.machine else wanted
