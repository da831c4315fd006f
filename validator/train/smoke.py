"""The same run with two steps, an evaluation and a save: what fails late fails within minutes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job.job import Job
from validator.job.resumption import UNNAMED
from validator.read import disk
from validator.train import aside

STEPS = 2
# Fewer tokens than ordinary samples have, so that enough of them are packed (Alpaca's have about a hundred).
_SAMPLE = 100
# Rows of a data set: some may be dropped while they are tokenized, and tokenizing more takes longer than the steps.
_LEAST, _MOST = 64, 10_000


def overrides(job: Job) -> tuple[str, ...]:
    """What makes two steps of the run, beside its output folder. Raises RecipeError where other runs' checkpoints lie
    there, of which the Trainer would remove some."""
    output = f"{str(job.get('output_dir') or UNNAMED).rstrip('/')}-smoke"
    for other in disk.matching(disk.expanded(output), "checkpoint-*"):
        if other.name != f"checkpoint-{STEPS}":
            raise RecipeError(f"`{output}` is not a smoke run's: it holds {other.name}; rename it")
    return (*aside.overrides(job, output), *_schedule(job), *_data(job))


def _schedule(job: Job) -> Iterator[str]:
    """The Trainer saves and evaluates at the second step; PPO saves by `save_steps` alone (train/ppo/trainer.py)."""
    yield from (f"max_steps={STEPS}", f"save_steps={STEPS}")
    if job.get("save_strategy") == "epoch":
        yield "save_strategy=steps"
    if job.evaluates_while_training:
        yield from ("eval_strategy=steps", f"eval_steps={STEPS}")
        yield from aside.where_set(job, {"eval_delay": "0"})


def _data(job: Job) -> Iterator[str]:
    """As many rows as the steps and one batch of evaluation on each device take. Tokenized data are taken as they are
    where they lie; else the cut ones would be kept in their place, for the run itself to find. The share held back is
    of the rows that are left; a stream has no end to take a share of (data/data_utils.py, split_dataset)."""
    if job.has("tokenized_path") and not job.tokenized:
        yield "tokenized_path=null"
    most, held = int(job.number("max_samples")), _evaluated(job)
    rows = min(_rows(job), most or _MOST)
    streams = job.flag("streaming")
    yield f"buffer_size={min(rows, int(job.number('buffer_size')))}" if streams else f"max_samples={rows}"
    if job.holds_back:
        share = round(min(held / rows, 0.5), 3)
        yield f"val_size={held if streams else share}"


def _rows(job: Job) -> int:
    """Rows of each data set. Where text is written for a set of its own, they are one batch on each device, as
    that takes longest."""
    evaluated = _evaluated(job)
    if job.has("eval_dataset") and (job.generates or job.predicts):
        return max(evaluated, job.micro_batch * job.world)
    trained = STEPS * job.effective_batch * _packed(job)
    return min(max(trained + evaluated, _LEAST), _MOST)


def _evaluated(job: Job) -> int:
    """Rows of one batch of evaluation on each device; no more than are held back, where that is a number."""
    batch = max(int(job.number("per_device_eval_batch_size")), 1) * job.world * _packed(job)
    own = job.number("val_size")
    return min(batch, int(own)) if own > 1 else batch


def _packed(job: Job) -> int:
    """Rows that fill a sequence."""
    return math.ceil(job.longest / _SAMPLE) if job.packs else 1


def passed(output: Path, seconds: float) -> str:
    """What a smoke run has gone through, from what it left, and how long that took."""
    results = output / "all_results.json"
    told = json.loads(results.read_text("utf-8")) if disk.kind(results) == "file" else {}
    names = {"train": f"{STEPS} steps", "eval": "evaluation", "predict": "prediction"}
    parts = [f"{name} {told[f'{kind}_runtime']:.1f} s" for kind, name in names.items() if f"{kind}_runtime" in told]
    saved = [path.name for path in disk.matching(output, f"checkpoint-{STEPS}")]
    through = ", ".join([*parts, *saved]) or "all"
    return f"smoke run: nothing failed in {seconds:.0f} s ({through}); the run itself goes without --smoke"
