"""The first steps of a recipe, really trained on this machine, and ended before anything is saved."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job.job import Job
from validator.measure.log import WARMING, Timed, reached, timed
from validator.train import aside
from validator.train.handoff import Handoff
from validator.train.launch import Process
from validator.train.trainer import Trainer

_LOG = "trainer_log.jsonl"
# Seconds between two looks at the log, and those that the trainer has to end in.
_LOOK, _GRACE = 0.2, 30
# What a run would do beside its steps, and what refuses to be without that.
_ALWAYS = (
    "include_num_input_tokens_seen=true",
    "save_strategy='no'",  # as YAML reads no
    "eval_strategy='no'",
    "plot_loss=false",
)
_WHERE_SET = {"load_best_model_at_end": "false", "early_stopping_steps": "null", "do_predict": "false"}


def overrides(job: Job, steps: int, output: Path) -> Iterator[str]:
    """What makes the recipe train so many steps after the first ones, into a folder of their own, and nothing else."""
    yield f"max_steps={WARMING + steps}"
    yield from (*aside.overrides(job, str(output)), *_ALWAYS, *aside.where_set(job, _WHERE_SET))


def measure(prepared: Handoff, steps: int) -> Timed:
    """Seconds of the steps; what the trainer prints goes to standard error. Raises RecipeError where it ends before
    them."""
    words, env = prepared.process
    log, wanted = Path(str(prepared.output), _LOG), WARMING + steps
    trainer = Trainer(Process(words, {**env, "RECORD_VRAM": "1"}), _GRACE, stdout=sys.stderr)
    with trainer.signalled():
        try:
            while trainer.poll() is None and reached(log) < wanted:
                time.sleep(_LOOK)
        finally:
            trainer.order(signal.SIGTERM)
            code = trainer.wait()
    if trainer.asked:
        sys.exit(128 + trainer.asked)
    if reached(log) < wanted:
        ended = f"{words[0]} ended with exit code {code} after {reached(log)} of {wanted} steps"
        raise RecipeError(f"{ended}; what it printed says why")
    return timed(log)
