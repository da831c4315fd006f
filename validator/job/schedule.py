"""Steps, warm-up and saves of a run (transformers' trainer.py and training_args.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from validator.job.job import Job
from validator.tables import releases

# The first transformers that reads a share in `warmup_steps`, and that lets `warmup_ratio` replace it.
SHARES = "transformers 5.0.0"


@dataclass(frozen=True)
class Schedule:
    """Optimizer steps. `epochs` are those really passed over, where `max_steps` sets the end."""

    batch: int
    per_epoch: int
    total: int
    epochs: float
    warmup: int
    saves: int


def schedule(job: Job, sequences: int) -> Schedule:
    """The schedule of a job on so many training sequences; LLaMA-Factory logs the same figures."""
    per_epoch = max(job.steps_per_epoch(sequences), 1)
    limit, epochs = int(job.number("max_steps")), max(job.number("num_train_epochs"), 0.0)
    total = limit if limit > 0 else math.ceil(epochs * per_epoch)
    passed = total / per_epoch if limit > 0 else epochs
    return Schedule(job.effective_batch, per_epoch, total, passed, warmup(job, total) or 0,
                    _saves(job, per_epoch, total))  # fmt: skip


def warmup(job: Job, total: int | None) -> int | None:
    """Optimizer steps of warm-up in a run of `total` steps; None if the warm-up is a share and the total is not known.

    transformers 5 lets `warmup_ratio` replace `warmup_steps`, which below 1 is a share of the run. transformers 4 takes
    `warmup_steps` as a count, and `warmup_ratio` only where that is 0. Source: training_args.py, get_warmup_steps.
    """
    steps, share = job.number("warmup_steps"), job.number("warmup_ratio")
    if releases.holds(job.header, since=SHARES):
        share = share if job.has("warmup_ratio") else steps
        steps, share = (share, 0.0) if share >= 1 else (0.0, share)
    if steps > 0 or not share:
        return int(steps)
    return math.ceil(total * share) if total else None


def _saves(job: Job, per_epoch: int, total: int) -> int:
    """Checkpoints written: at each interval, and at the end."""
    every = interval(job, per_epoch, total)
    return math.ceil(total / every) if every else 0


def interval(job: Job, per_epoch: int, total: int) -> int:
    """Optimizer steps from one checkpoint to the next; 0 where none is written."""
    how, every = job.get("save_strategy"), job.number("save_steps")
    if how == "steps":
        return (math.ceil(total * every) if every < 1 else int(every)) or total
    return per_epoch if how == "epoch" else 0
