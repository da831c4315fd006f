"""Why the memory of a run was not judged."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Gap
from validator.job.job import Job
from validator.read.text import clip

_LONGEST = 500  # characters, of which a name may be most
_NO_MACHINE = "no machine named: give --machine 8xa100-80g"


def gaps(job: Job, tried: bool = False) -> Iterator[Gap]:
    """What a verdict lacks. A model that is not known is told in full where no finding (FIT005) does it; where a
    simulation was tried, the finding says of each file why it failed, and no sum stands for it."""
    if job.machine_problem:
        yield Gap("machine not known", "machine not known")
    elif not job.machine:
        yield Gap(_NO_MACHINE, _NO_MACHINE)
    if job.model_problem:
        told = bool(job.machine)
        code = "FIT005" if told and not tried else ""
        yield Gap("model not known", "model not known" if told else clip(job.model_problem, _LONGEST), code)
    if job.trains_nothing:
        yield Gap("nothing is trained", "nothing is trained: the formulas are of training")
    if job.sharded_by and job.sharded_by.problem:
        yield Gap("DeepSpeed file not read", "DeepSpeed file not read")
    if job.accelerate and not job.accelerate.judged:
        yield Gap("accelerate file not understood", "accelerate file not understood")
