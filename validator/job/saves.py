"""Checkpoints of a run in time: how long one takes to be written, and how far they lie apart."""

from __future__ import annotations

import math

from validator.job.job import GIB, Job
from validator.job.pace import pace
from validator.job.schedule import interval
from validator.speed.course import saving

# A disk of which nobody published a rate, bytes a second: a busy network file system.
_SLOW_DISK = 0.2 * GIB


def seconds(job: Job) -> float:
    """What one checkpoint takes at most to be written; 0 where its size is not known."""
    rates = job.machine.device.rates(job.machine.devices) if job.machine else None
    if rates is None or job.workload is None:
        return job.checkpoint / _SLOW_DISK
    return saving(job.checkpoint, job.workload, rates).high


def apart(job: Job) -> float | None:
    """Seconds from one checkpoint to the next at most; infinite where none is written before the end, None where it is
    not known."""
    timed = pace(job)
    if timed is None:
        return None
    total = timed.steps or int(job.steps)
    every = interval(job, job.steps_per_epoch(job.data_rows or 0), total)
    if not total and (job.get("save_strategy") != "steps" or every < 1):
        return None
    return every * timed.step.high if every and every < (total or math.inf) else math.inf
