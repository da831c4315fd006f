"""TRA420 to TRA425: how a run goes: its steps, its warm-up, what is measured on the way, and what a kill would cost."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import RecipeError, Severity, plural
from validator.job.job import Job
from validator.job.schedule import interval, warmup
from validator.rules.rule import Finding, rule
from validator.tables import machines

# A run of fewer optimizer steps is over before the schedule has done its work: LIMA and s1 took 230 and 315.
_FEW_STEPS = 50
# With a batch of this size they would be enough; fewer samples than that are another matter (DAT001).
_SMALL_BATCH = 8
# Passes over the data for which a rate that never falls is unusual.
_MANY_EPOCHS = 3.0
# A run that is over so soon is started anew; a kill of a longer one is to cost no more than that.
_SOON = 3600.0
_HOURS_LOST = 2 * 3600.0
# Times as long as a checkpoint takes to be written, at least, from one to the next.
_SHARE = 10


@rule("TRA420", Severity.WARNING)
def few_steps(job: Job) -> Iterator[Finding]:
    """The run has only a few optimizer steps.

    Why: the effective batch is large for so few samples: the weights are changed a few dozen times, and the warm-up and
    the fall of the rate take most of them. LIMA took some 230 steps over 1,000 samples, s1 some 315.
    Source: own (guidance)
    Fix: a smaller `gradient_accumulation_steps`, fewer devices, or more samples.
    """
    enough = (job.data_rows or 0) * job.number("num_train_epochs") >= _FEW_STEPS * _SMALL_BATCH
    told = job.number("max_steps") > 0 or job.packs  # packed, rows are not sequences
    if job.trains and enough and not told and job.steps < _FEW_STEPS and not job.overfits:
        rows = f"{job.data_rows or 0:,} samples in batches of {job.effective_batch}"
        yield (
            "gradient_accumulation_steps",
            f"{rows} are {job.steps} steps in all, too few to learn much; take smaller batches or more samples",
        )


@rule("TRA421", Severity.NOTE)
def no_warmup(job: Job) -> Iterator[Finding]:
    """The run starts at the full learning rate.

    Why: the first steps of Adam are the least certain; most published runs raise the rate over 3 to 10 % of the steps.
    LIMO took no warm-up.
    Source: own (guidance)
    Fix: `warmup_ratio: 0.03`.
    """
    if job.trains and warmup(job, max(job.steps, 1)) == 0 and job.get("lr_scheduler_type") != "constant":
        at = next((key for key in ("warmup_ratio", "warmup_steps") if job.has(key)), "learning_rate")
        yield at, "no warm-up: the run starts at the full rate; write `warmup_ratio: 0.03`"


@rule("TRA422", Severity.NOTE)
def rate_never_falls(job: Job) -> Iterator[Finding]:
    """The learning rate stays the same over many passes.

    Why: with a rate that does not fall the loss does not settle, and each further pass overfits more.
    Source: own (experience)
    Fix: `lr_scheduler_type: cosine` or linear, or fewer epochs.
    """
    constant = job.get("lr_scheduler_type") in ("constant", "constant_with_warmup")
    if constant and job.trains and job.number("num_train_epochs") > _MANY_EPOCHS and not job.overfits:
        epochs = f"{job.number('num_train_epochs'):g}"
        yield "lr_scheduler_type", f"the rate stays the same over {epochs} epochs; `cosine` lets it fall"


@rule("TRA423", Severity.NOTE)
def never_evaluated(job: Job) -> Iterator[Finding]:
    """Nothing is measured on samples that are not trained on.

    Why: the training loss falls also where the model only learns its samples by heart.
    Source: own (experience)
    Fix: `val_size: 0.02` with `eval_strategy: steps` and `eval_steps`, or `eval_dataset`.
    """
    if job.trains and not job.evaluates and job.stage in ("sft", "dpo", "kto", "rm") and not job.overfits:
        text = "nothing is measured on samples that are not trained on"
        yield "dataset", f"{text}; `val_size: 0.02` with `eval_strategy: steps` does it"


@rule("TRA424", Severity.WARNING)
def kill_costs_much(job: Job) -> Iterator[Finding]:
    """Checkpoints lie so far apart that a kill would cost hours, or none is written before the end.

    Why: queues, drivers and power end long runs. What was computed since the last checkpoint is lost.
    Source: transformers/trainer_callback.py:DefaultFlowCallback.on_step_end
    Fix: the `save_steps` that is named: a checkpoint at least every hour on one node, every half hour on several.
    """
    if not job.trains or job.get("save_strategy") == "no" or job.machine is None:
        return
    from validator.job import saves
    from validator.job.pace import pace  # which rules about files do not wait for

    timed = pace(job)
    if timed is None or timed.run is None or timed.run.expected < _SOON:
        return
    total, step = timed.steps or job.steps, timed.step.expected
    worth = _SHARE * saves.seconds(job)  # more often would waste time (TRA926)
    steps = max(1, int(max(_SOON if job.machine.nodes == 1 else _SOON / 2, worth) / step))
    remedy = f"set `save_steps: {steps}`, some {_hours(steps * step)}"
    every = interval(job, job.steps_per_epoch(job.data_rows or 0), total)
    if not 0 < every < total:
        if timed.run.expected > 2 * worth:
            run = f"the run has {job.steps:,} steps of some {_hours(timed.run.expected)}"
            yield "save_steps", f"no checkpoint before the end: {run}; {remedy}"
    elif every * step > max(_HOURS_LOST, 2 * worth):
        yield "save_steps", f"a checkpoint every {_hours(every * step)}: a kill may cost as much; {remedy}"


@rule("TRA425", Severity.NOTE)
def batch_follows_the_devices(job: Job) -> Iterator[Finding]:
    """Another number of devices than the recipe was written for changes the effective batch.

    Why: every device adds its micro batches to a step. With four times the devices a step takes four times the samples,
    and the run a quarter of the steps, at a learning rate that was chosen for the smaller batch.
    Source: transformers/trainer.py:Trainer.get_total_train_batch_size
    Fix: the `gradient_accumulation_steps` in the message, or another learning rate.
    """
    written = job.header.get("machine")
    if job.machine is None or not job.trains or not isinstance(written, str) or written == str(job.machine):
        return
    try:
        before = machines.machine(written).world
    except RecipeError:  # another rule tells it
        return
    if before == job.world:
        return
    steps, remainder = divmod(job.accumulation * before, job.world)
    batch = job.effective_batch * before // job.world
    devices = f"with {job.world} {plural(job.world, 'device')}, not {before}"
    text = f"{devices}, the effective batch is {job.effective_batch}, not {batch}"
    remedy = f"; `gradient_accumulation_steps: {steps}` keeps it" if steps and not remainder else ""
    yield "gradient_accumulation_steps", f"{text} instead of {batch}{remedy}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"
