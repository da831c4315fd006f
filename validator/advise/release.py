"""The transformers release before the newest major one, where a quantized mixture fits with that alone."""

from __future__ import annotations

from dataclasses import replace

from validator.advise.explanation import Released
from validator.job.job import GIB, Job
from validator.tables import releases


def older(job: Job) -> Released | None:
    """What the run needs with it, GiB; None where it does not fit there with a margin, or need not. Its experts are
    linear modules, which 4 bits reach."""
    mixture = job.model is not None and job.model.arch.ffn.experts > 0
    if not (mixture and job.quantization.loads and job.worst in ("tight", "exceeds")):
        return None
    version = releases.previous()[1]
    there = replace(job, header={**job.header, "transformers": version})
    memory = there.device_memory
    if memory is None or there.worst != "fits":
        return None
    return Released(version, memory.low / GIB, memory.expected / GIB, memory.high / GIB, there.worst)
