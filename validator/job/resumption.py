"""From which checkpoint LLaMA-Factory goes on, by its own rules (hparams/parser.py, get_train_args)."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from validator.job.job import Job
from validator.read import disk

if TYPE_CHECKING:  # few recipes have an output folder that is there
    from validator.tables.saved import Saved

_DROPPED = 0.05
# Where the Trainer writes if no folder is named (transformers, training_args.py).
UNNAMED = "trainer_output"


def never(job: Job) -> bool:
    """Whether stage and method start anew whatever is asked."""
    return job.stage in ("rm", "ppo") and job.method in ("full", "freeze")


def unasked(job: Job) -> bool:
    """Whether LLaMA-Factory looks into the output folder by itself."""
    return job.trains and not (job.has("resume_from_checkpoint") or job.flag("overwrite_output_dir") or never(job))


def output(job: Job) -> Path | None:
    """The output folder, where it exists."""
    folder = disk.expanded(str(job.get("output_dir") or UNNAMED))
    location = job.find(str(folder))
    return folder if location and location[1] and disk.kind(location[0]) == "folder" else None


def there(job: Job) -> list[Saved]:
    """The checkpoints in the output folder, the last one last."""
    folder = output(job)
    if folder is None:
        return []
    from validator.tables.saved import checkpoints

    return checkpoints(folder)


def results(job: Job) -> list[str]:
    """Names of the files with weights in the output folder itself, which a run leaves at its end."""
    folder = output(job)
    if folder is None:
        return []
    from validator.tables.whole import WEIGHTS

    return [name for name in WEIGHTS if disk.kind(folder / name) == "file"]


@lru_cache(maxsize=1)
def chosen(job: Job) -> tuple[Saved, ...]:
    """What the run would go on from, the last one first; the Trainer takes that, whole or not."""
    asked = job.get("resume_from_checkpoint")
    if not job.trains or never(job):
        return ()
    if isinstance(asked, str) and asked:
        place = job.find(asked)
        return _named(place[0]) if place and disk.kind(place[0]) == "folder" else ()
    return tuple(reversed(there(job))) if asked is True or unasked(job) else ()


def _named(folder: Path) -> tuple[Saved, ...]:
    from validator.tables.saved import Saved

    return (Saved(folder),)


def half(job: Job) -> tuple[Saved, ...]:
    """Half-written checkpoints in the output folder, after the last whole one: at the last of them the run would
    stop."""
    if isinstance(job.get("resume_from_checkpoint"), str):
        return ()
    taken, saved = source(job), chosen(job)
    return saved[: saved.index(taken)] if taken else saved


def source(job: Job) -> Saved | None:
    """The last whole one."""
    return next((saved for saved in chosen(job) if not saved.flaw), None)


def counts(job: Job, saved: Saved) -> tuple[int, int] | None:
    """Samples that all processes take at once, in the checkpoint's run and in this one; None where that is not known:
    nodes with disks of their own see the processes of one."""
    machine, batch = job.machine, saved.state.get("train_batch_size")
    if machine is None or saved.processes is None or not isinstance(batch, int):
        return None
    if machine.nodes > 1 and saved.processes == machine.devices:
        return None
    return batch * saved.processes, job.micro_batch * job.world


def epochs(job: Job, saved: Saved) -> tuple[int, int] | None:
    """Optimizer steps of an epoch, in the checkpoint's run and in this one; None where the rows of the data are not
    known, or how many of them fill a sequence."""
    known = job.rows is not None and not (job.packs or job.tokenized or job.flag("streaming"))
    if saved.per_epoch is None or job.machine is None or not known:
        return None
    from validator.job import pace  # which no recipe without a checkpoint asks for

    train = pace.amount(job).train
    return None if train is None else (saved.per_epoch, job.steps_per_epoch(train))


def alike(job: Job, saved: Saved) -> bool:
    """Whether a step is what it was, as far as known; a few rows may be dropped while they are tokenized."""
    if steps := epochs(job, saved):
        return abs(steps[0] - steps[1]) <= max(1, _DROPPED * steps[0])
    batches = counts(job, saved)
    return batches is None or batches[0] == batches[1]


def total(job: Job, saved: Saved) -> int | None:
    """Optimizer steps of the whole run; None where an epoch may have another number of them than it had."""
    if job.number("max_steps") > 0:
        return int(job.number("max_steps"))
    known = saved.per_epoch if alike(job, saved) else None
    return math.ceil(job.number("num_train_epochs") * known) if known else None


def done(job: Job, saved: Saved) -> bool:
    """Whether the checkpoint is at the end of the run."""
    steps = total(job, saved)
    return steps is not None and saved.step >= steps


def finished(job: Job, saved: Saved) -> bool:
    """Whether that run has left its result, too, which it may also where it was told to stop before the end. One that
    was killed while it wrote the result has not."""
    from validator.tables.whole import cut_off

    folder = output(job)
    return done(job, saved) and bool(results(job)) and folder is not None and cut_off(folder) is None
