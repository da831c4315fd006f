"""The first steps of a recipe, really trained on this machine, and ended before anything is saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job.job import Job
from validator.measure.log import WARMING, Timed, reached, timed
from validator.train import aside
from validator.train.handoff import Handoff

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
    with _started(words, {**env, "RECORD_VRAM": "1"}) as trainer:
        while trainer.poll() is None and reached(log) < wanted:
            time.sleep(_LOOK)
    if reached(log) < wanted:
        ended = f"{words[0]} ended with exit code {trainer.returncode} after {reached(log)} of {wanted} steps"
        raise RecipeError(f"{ended}; what it printed says why")
    return timed(log)


@contextmanager
def _started(words: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The trainer with all its processes, which end with the block."""
    try:
        trainer = subprocess.Popen(words, env=env, stdout=sys.stderr, start_new_session=True)
    except OSError as err:
        raise RecipeError(f"{words[0]} cannot be started: {(err.strerror or str(err)).lower()}") from None
    try:
        yield trainer
    finally:
        _end(trainer)


def _end(trainer: subprocess.Popen[bytes]) -> None:
    """Asked first, and made to after a while: nothing that it could save is wanted."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(trainer.pid, number)
        with suppress(subprocess.TimeoutExpired):
            trainer.wait(_GRACE)
