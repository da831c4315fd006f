"""Optimizer steps, warm-up steps and saves of a run, and the number of its checkpoints on disk (transformers'
trainer.py and training_args.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from validator.run.settings import RunSettings

# The first transformers that reads a share in `warmup_steps`, and that lets `warmup_ratio` replace it.
WARMUP_SHARES_SINCE = "transformers 5.0.0"


@dataclass(frozen=True)
class Schedule:
    """Optimizer steps of a run. `batch`: samples per step; `total`: steps of the whole run; `warmup`: steps of warm-up;
    `saves`: checkpoints written; `evaluations`: evaluations made, one of them at the end. `epochs`: passes over the
    data that are really made, which `max_steps` may limit."""

    batch: int
    per_epoch: int
    total: int
    epochs: float
    warmup: int
    saves: int
    evaluations: int


def training_schedule(run: RunSettings, sequences: int) -> Schedule:
    """Return the schedule of a run. `sequences`: number of training sequences per epoch. LLaMA-Factory logs the same
    figures when it starts."""
    per_epoch = max(run.batch.steps_per_epoch(sequences), 1)
    limit, epochs = int(run.args.number("max_steps")), max(run.args.number("num_train_epochs"), 0.0)
    total = limit if limit > 0 else math.ceil(epochs * per_epoch)
    passed = total / per_epoch if limit > 0 else epochs
    every = _save_interval(run, per_epoch, total)
    return Schedule(
        batch=run.batch.effective_batch,
        per_epoch=per_epoch,
        total=total,
        epochs=passed,
        warmup=warmup_steps(run, total) or 0,
        saves=math.ceil(total / every) if every else 0,  # at each interval, and at the end
        evaluations=_evaluation_count(run, total, passed),
    )


def warmup_steps(run: RunSettings, total: int | None) -> int | None:
    """Optimizer steps of warm-up in a run of `total` steps; None if the warm-up is a share of the run and the total is
    not known.

    In transformers 5 `warmup_ratio` replaces `warmup_steps`; a value below 1 is a share of the run. In transformers 4
    `warmup_steps` is a count, and `warmup_ratio` counts only if `warmup_steps` is 0. Source: training_args.py,
    get_warmup_steps."""
    steps, share = run.args.number("warmup_steps"), run.args.number("warmup_ratio")
    if run.releases.requires(since=WARMUP_SHARES_SINCE):
        share = share if run.args.is_set("warmup_ratio") else steps
        steps, share = (share, 0.0) if share >= 1 else (0.0, share)
    if steps > 0 or not share:
        return int(steps)
    return math.ceil(total * share) if total else None


def save_interval(run: RunSettings, total: int) -> int:
    """Return the optimizer steps from one checkpoint to the next; 0 if the run does not save at a fixed interval.
    `total`: optimizer steps of the whole run."""
    return _save_interval(run, run.batch.steps_per_epoch((run.data.rows or 0) - run.data.held_back_rows), total)


def _save_interval(run: RunSettings, per_epoch: int, total: int) -> int:
    how = run.args.get("save_strategy")
    if how == "steps":
        return _interval_steps(run.args.number("save_steps"), total) or total
    return per_epoch if how == "epoch" else 0


def evaluation_interval(run: RunSettings, total: int) -> int:
    """Return the optimizer steps from one evaluation to the next if the run evaluates by steps; 0 if no interval is
    named. Without `eval_steps`, the logging interval counts (transformers, training_args.py). `total`: optimizer steps
    of the whole run."""
    return _interval_steps(run.args.number("eval_steps") or run.args.number("logging_steps"), total)


def _evaluation_count(run: RunSettings, total: int, epochs: float) -> int:
    """Return the number of evaluations: one at each interval, and one more at the end (train/sft/workflow.py)."""
    if not run.evaluation.runs:
        return 0
    if run.evaluation.strategy == "epoch":
        return math.ceil(epochs) + 1
    every = evaluation_interval(run, total)
    return (total // every if run.evaluation.strategy == "steps" and every else 0) + 1


def _interval_steps(every: float, total: int) -> int:
    """Return the optimizer steps of an interval such as `save_steps`. A value below 1 is a share of the run's `total`
    steps."""
    return math.ceil(total * every) if every < 1 else int(every)


class CheckpointCounts(NamedTuple):
    """Numbers of checkpoints in the output folder. `kept`: after a save; `at_once`: while a checkpoint is written."""

    kept: int
    at_once: int


def count_checkpoints(run: RunSettings) -> CheckpointCounts:
    """Return the most checkpoints that a run keeps, and the most that are on disk at the same time.

    A checkpoint is written before the oldest one is removed, so for a while there is one more than `save_total_limit`.
    The Trainer removes neither the last checkpoint nor the best, so a limit of 1 keeps two if checkpoints are compared
    by a metric. Source: transformers/trainer.py, _save_checkpoint; transformers/trainer_utils.py,
    rotate_checkpoints."""
    if run.args.get("save_strategy") == "no":
        return CheckpointCounts(0, 0)
    written, limit = written_checkpoints(run), int(run.args.number("save_total_limit"))
    if limit < 1:
        return CheckpointCounts(written or 1, written or 1)
    best = run.evaluation.best_checkpoint_metric is not None and run.evaluation.while_training
    kept = max(limit, 2 if best else 1)
    return CheckpointCounts(min(kept, written or kept), min(kept + 1, written or kept + 1))


def written_checkpoints(run: RunSettings) -> int | None:
    """Return the most checkpoints that the run writes, including the checkpoint at its end; None if the number of
    optimizer steps is not known."""
    if not (total := run.steps):
        return None
    best = run.args.get("save_strategy") == "best"  # at most one each evaluation
    every = evaluation_interval(run, total) if best else save_interval(run, total)
    return math.ceil(total / every) if every else None
