"""PAR020 and PAR021: the steps in a DeepSpeed JSON file that the Trainer compares with the run's."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Place, Severity
from validator.job.job import Job
from validator.job.schedule import warmup
from validator.rules.inside import deepspeed
from validator.rules.rule import Finding, rule

_WARMUP = "scheduler.params.warmup_num_steps"
_TOTAL = "scheduler.params.total_num_steps"


@rule("PAR020", Severity.ERROR)
def steps_contradicted(job: Job) -> Iterator[Finding]:
    """Fixed steps of the scheduler in the DeepSpeed JSON are not the run's.

    Why: "Please correct the following DeepSpeed config values that mismatch TrainingArguments values", after the data
    set is tokenized and the model is loaded on every rank.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize,
    transformers/training_args.py:TrainingArguments.get_warmup_steps
    Fix: "auto" in the JSON: the recipe alone decides.
    """
    for path, steps, what in ((_WARMUP, warmup(job, _total(job)), "warms up for"), (_TOTAL, _total(job), "takes")):
        fixed = _fixed(job, path)
        if fixed is not None and steps is not None and fixed != steps:
            yield _at(job, path), f'{path} is {fixed}, the run {what} {steps:,} steps; write "auto" in the JSON'


@rule("PAR021", Severity.WARNING)
def steps_by_chance(job: Job) -> Iterator[Finding]:
    """Fixed steps of the scheduler in the DeepSpeed JSON, where the data decide how many there are.

    Why: the Trainer stops unless the number is exactly the run's, after the data set is tokenized and the model is
    loaded on every rank; it differs with rows, batch size and devices.
    Source: transformers/integrations/deepspeed.py:HfTrainerDeepSpeedConfig.trainer_config_finalize
    Fix: "auto" in the JSON; or `max_steps` in the recipe.
    """
    for path, steps in ((_WARMUP, warmup(job, _total(job))), (_TOTAL, _total(job))):
        fixed = _fixed(job, path)
        if fixed is not None and steps is None:
            yield (
                _at(job, path),
                f'{path} is {fixed} and must be exactly what the data make of the run; write "auto" in the JSON',
            )


def _fixed(job: Job, path: str) -> int | float | None:
    """The number at a dotted path, None where the Trainer fills it in."""
    value = job.zero.value(path) if job.zero and job.trains else None
    return value if isinstance(value, (int, float)) else None


def _at(job: Job, path: str) -> Place:
    keys = ("warmup_steps", "warmup_ratio") if path == _WARMUP else ("max_steps", "num_train_epochs")
    return deepspeed(job, *path.split("."), against=keys)


def _total(job: Job) -> int | None:
    """Steps of the run, where the recipe alone says how many."""
    steps = int(job.number("max_steps"))
    return steps if steps > 0 else None
