"""The accelerators: whether they answer, and are those that the run wants."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import RecipeError
from validator.doctor.line import Line
from validator.doctor.node import Node
from validator.here import machine
from validator.job.job import Job

_WHAT = "devices"
_COMPUTE = "run it on a compute node, such as by `srun`"


def lines(job: Job | None, _node: Node) -> Iterator[Line]:
    """The devices here. A machine without any, such as a login node, is at fault where a run wants some."""
    wanted = str(job.machine) if job and job.machine and not job.on_cpu else ""
    try:
        here = machine.look()
    except RecipeError as err:
        yield Line("error" if wanted or job is None else "warning", _WHAT, str(err), wanted)
        return
    if here is None:
        yield Line(
            "error" if wanted else "ok", _WHAT, "this machine shows no device", wanted, _COMPUTE if wanted else ""
        )
        return
    yield Line("ok", _WHAT, str(here), wanted)
