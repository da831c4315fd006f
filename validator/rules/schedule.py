"""TRA408 to TRA413 and TRA417: learning rate and its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import Place, RecipeError, Severity
from validator.job.job import Job
from validator.job.schedule import SHARES, warmup
from validator.read.tree import parse_json
from validator.rules import edits
from validator.rules.rule import Finding, rule
from validator.tables import releases
from validator.tables.suggestion import suggest

# Keyword arguments of transformers' schedules (optimization.py); None: anything is passed on or nothing read
_WITH_FLOOR = {"num_cycles", "min_lr", "min_lr_rate"}
_SCHEDULES: Mapping[str, set[str] | None] = {
    "linear": set(),
    "cosine": {"num_cycles"},
    "cosine_with_restarts": {"num_cycles"},
    "polynomial": {"lr_end", "power"},
    "constant": None,
    "constant_with_warmup": None,
    "inverse_sqrt": {"timescale"},
    "cosine_with_min_lr": _WITH_FLOOR,
    "cosine_warmup_with_min_lr": {*_WITH_FLOOR, "warmup_lr_rate"},
    "warmup_stable_decay": {
        *("num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles")
    },
}


def schedule_arguments(job: Job) -> Mapping[str, Any] | None:
    """`lr_scheduler_kwargs` as a mapping; None where it cannot be read."""
    value = job.get("lr_scheduler_kwargs")
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except RecipeError:
            return None
    return value if isinstance(value, dict) else {} if value is None else None


@rule("TRA408", Severity.ERROR)
def schedule_arguments_refused(job: Job) -> Iterator[Finding]:
    """The learning-rate schedule lacks an argument, or gets one it does not know.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank.
    Source: transformers/optimization.py:get_scheduler, transformers/optimization.py:TYPE_TO_SCHEDULER_FUNCTION,
    transformers/optimization.py:get_cosine_with_min_lr_schedule_with_warmup
    Fix: `lr_scheduler_kwargs: {min_lr_rate: 0.1}` for schedules with a floor; no argument for linear.
    """
    name, given = str(job.get("lr_scheduler_type")), schedule_arguments(job)
    known = _SCHEDULES.get(name)
    if known is None or given is None:
        return
    unknown = sorted(set(given) - known)
    if unknown:
        hint = suggest(unknown[0], known) or f"; it takes {', '.join(sorted(known)) or 'none'}"
        place = Place(("lr_scheduler_kwargs", unknown[0]), at_key=True)
        yield place, f"schedule {name} does not take `{unknown[0]}`{hint}"
    elif known >= _WITH_FLOOR:
        floors = [key for key in ("min_lr", "min_lr_rate") if given.get(key) is not None]
        if len(floors) != 1:
            what = "both `min_lr` and `min_lr_rate`" if floors else "no lowest rate"
            at = "lr_scheduler_kwargs" if job.has("lr_scheduler_kwargs") else "lr_scheduler_type"
            yield at, f"schedule {name} gets {what}; set `lr_scheduler_kwargs: {{min_lr_rate: 0.1}}`"


@rule("TRA409", Severity.ERROR)
def schedule_ends_above(job: Job) -> Iterator[Finding]:
    """The polynomial schedule ends above the learning rate it starts from.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank. The default
    end is 1e-7.
    Source: transformers/optimization.py:get_polynomial_decay_schedule_with_warmup
    Fix: an `lr_end` below `learning_rate`.
    """
    given = schedule_arguments(job) or {}
    end, rate = given.get("lr_end", 1e-7), job.number("learning_rate")
    if job.get("lr_scheduler_type") == "polynomial" and isinstance(end, (int, float)) and rate > 0 and end >= rate:
        yield "learning_rate", f"schedule polynomial ends at {end:g}, `learning_rate` is {rate:g}; set a lower `lr_end`"


@rule("TRA410", Severity.ERROR)
def learning_rate_refused(job: Job) -> Iterator[Finding]:
    """The learning rate or the warm-up is below zero, or the rate no number (`.nan`).

    Why: a negative warm-up is refused at parse; such a rate when the optimizer is made, after the model is loaded.
    Source: transformers/training_args.py:TrainingArguments._validate_args, torch/optim/adam.py:Adam.__init__
    Fix: rates around 1e-4 for LoRA and 1e-5 for full fine-tuning.
    """
    rate = job.get("learning_rate")
    if job.number("learning_rate") < 0 or rate != rate:  # NaN differs from itself
        yield "learning_rate", f"`learning_rate` is {job.get('learning_rate')}; 1e-4 is usual for LoRA, 1e-5 for full"
    for key in ("warmup_steps", "warmup_ratio"):
        if job.number(key) < 0:
            yield key, f"`{key}` is {job.get(key)}, it must not be negative"


@rule("TRA411", Severity.WARNING)
def learning_rate_useless(job: Job) -> Iterator[Finding]:
    """The learning rate trains nothing, or destroys the model.

    Why: at 0 the run ends normally with the weights it began with; near 1 the loss turns into NaN within a few steps.
    Source: own (experience)
    Fix: rates around 1e-4 for LoRA and 1e-5 for full fine-tuning.
    """
    rate = job.get("learning_rate")
    if rate == 0 and not isinstance(rate, bool):
        yield "learning_rate", "`learning_rate: 0` trains nothing; 1e-4 is usual for LoRA, 1e-5 for full"
    elif isinstance(rate, (int, float)) and rate >= 0.1:
        yield "learning_rate", f"`learning_rate` is {float(rate):g}; 1e-4 is usual for LoRA, 1e-5 for full"


@rule("TRA412", Severity.WARNING)
def warmup_never_ends(job: Job) -> Iterator[Finding]:
    """The warm-up is as long as the run, or longer.

    Why: the learning rate never reaches the value that the recipe states. `warmup_ratio` and `warmup_steps` below 1 are
    shares of the run; from 1 on both are steps.
    Source: transformers/training_args.py:TrainingArguments.get_warmup_steps
    Fix: 3 to 10 % of the steps, such as `warmup_ratio: 0.05`.
    """
    key = "warmup_ratio" if job.has("warmup_ratio") else "warmup_steps"
    steps = warmup(job, job.steps) or 0
    if 0 < job.steps <= steps and job.number(key) >= 1:
        yield key, f"warm-up takes {steps:,} steps and the run {job.steps:,}; write `warmup_ratio: 0.05`"


@rule("TRA413", Severity.NOTE)
def warmup_unread(job: Job) -> Iterator[Finding]:
    """A warm-up is set for a schedule that has none.

    Why: `constant` starts at the full rate.
    Source: transformers/optimization.py:get_scheduler
    Fix: `lr_scheduler_type: constant_with_warmup`.
    """
    for key in ("warmup_steps", "warmup_ratio"):
        if job.get("lr_scheduler_type") == "constant" and job.number(key) > 0:
            yield key, f"schedule constant has no warm-up, `{key}` has no effect; use constant_with_warmup"


@rule("TRA417", Severity.WARNING)
def warmup_by_release(job: Job) -> Iterator[Finding]:
    """Releases of transformers that may run the recipe read its warm-up differently.

    Why: `warmup_steps: 0.03` is 3 % of the run in transformers 5, and in 4 less than one step: no warm-up at all. Where
    both keys are set, 5 takes `warmup_ratio` and 4 takes `warmup_steps`. LLaMA-Factory admits both releases.
    Source: transformers/training_args.py:TrainingArguments.get_warmup_steps
    Fix: `warmup_ratio: 0.03` alone, a share of the run in every release.
    """
    steps, ratio = job.get("warmup_steps"), job.get("warmup_ratio")
    if not isinstance(steps, (int, float)) or steps <= 0:
        return
    if ratio is not None:
        yield (
            "warmup_steps",
            (f"transformers 5 takes `warmup_ratio: {ratio}` and 4 takes `warmup_steps: {steps:g}`; keep one of them"),
        )
    elif steps < 1 and len({releases.reached(pair, SHARES) for pair in releases.admitted(job.header)}) > 1:
        text = f"`warmup_steps: {steps:g}` is no warm-up in transformers 4; write `warmup_ratio: {steps:g}`"
        yield "warmup_steps", text, edits.rename("warmup_steps", "warmup_ratio")
