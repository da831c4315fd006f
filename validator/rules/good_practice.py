"""TRA418 to TRA425: settings that work, but that an experienced practitioner would not choose.

Learning rate, batch size and epochs are compared with those of published runs (data/rates.yaml). Further rules judge
the number of steps, warm-up, evaluations, and the training time that is lost if the run is killed between two
checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from validator.errors import RecipeError
from validator.knowledge import guidance
from validator.knowledge.devices import Machine, parse_machine
from validator.levers.options import together
from validator.rules import subjects
from validator.rules.evaluating import evaluation_settings
from validator.rules.rule import NOTE, WARNING, Findings, rule
from validator.rules.slow_settings import interval_settings, rarer_settings
from validator.run.prediction import predict
from validator.run.schedule import save_interval, warmup_steps
from validator.run.settings import RunSettings
from validator.run.training_time import checkpoint_write_seconds, predict_training_time
from validator.run.variants import with_arguments
from validator.wording import plural

# Beyond the published range by this factor a value is a mistake more often than a choice.
_FAR_FACTOR = 3.0
# Where nobody published a range, so far from the one known value.
_FAR_FACTOR_WITHOUT_RANGE = 10.0
_ROUNDING_FACTOR = 1 + 1e-9  # numbers that differ by rounding are equal
# What a setting is called whose key says only a part of it.
_SETTING_NAMES = {"learning_rate": "learning rate", "batch": "effective batch", "epochs": "number of epochs"}
_SETTING_KEYS = {"batch": "per_device_train_batch_size", "epochs": "num_train_epochs"}
_MAX_SOURCES = 3  # sources


class _PublishedSetting(NamedTuple):
    """A setting of the recipe, compared with published runs. `key`, `value`: the recipe's key and its value. `words`:
    the setting as text for a message. `row`: the low, default and high value of published runs; None for an unknown
    limit. `sources`: keys of the publications in rates.yaml."""

    key: str
    words: str
    value: float
    row: Mapping[str, float | None]
    sources: list[str]

    @property
    def distance(self) -> float:
        """How far the recipe's value lies outside of the published range: the factor between the value and the nearest
        limit, or 1 inside of the range."""
        low, high = self.row["low"], self.row["high"]
        if high is not None and self.value > high * _ROUNDING_FACTOR:
            return self.value / high if high else float("inf")
        if low is not None and self.value < low / _ROUNDING_FACTOR:
            return low / self.value if self.value > 0 else float("inf")
        return 1.0

    @property
    def ranged(self) -> bool:
        """True if published runs give a limit on the side where the recipe's value lies: an upper limit for a value
        above the default, otherwise a lower limit."""
        return self.row["high" if self.value > float(self.row["default"] or 0) else "low"] is not None

    @property
    def text(self) -> str:
        low, default, high = (self.row[name] for name in ("low", "default", "high"))
        used = "and".join(f" {each:g} " for each in (low, high) if each is not None).strip()
        used = f"between {used}" if low is not None and high is not None else used or f"{default:g}"
        by = ", ".join(self.sources[:_MAX_SOURCES])
        return f"{self.words} {self.value:g}; published runs used {used} ({by}); {default:g} is a good start"


def _published_settings(run: RunSettings) -> Iterator[tuple[_PublishedSetting]]:
    """Yield each setting of the recipe for which rates.yaml has published values; nothing for a run that trains nothing
    or is meant to overfit."""
    if not run.task.trains or run.task.is_inference_only or run.declared.overfit:
        return
    optimizer = run.requested_optimizers[0].removeprefix("use_") if run.requested_optimizers else None
    row = guidance.rate_row(run.task.stage, run.task.method, run.model.billions if run.model else None, optimizer)
    values = {
        "learning_rate": run.args.number("learning_rate"),
        "batch": run.batch.effective_batch if run.machine and not run.batch.packing else None,
        "epochs": run.args.number("num_train_epochs") if run.args.number("max_steps") <= 0 else None,
    }
    for name, value in values.items():
        if row and value is not None and _is_plausible(name, value):
            words = f"{_SETTING_NAMES[name]} of {run.task.stage} with {run.task.method} is"
            yield (_PublishedSetting(_SETTING_KEYS.get(name, name), words, value, row[name], row["source"]),)
    for shape in guidance.setting_rows(run.task.stage, run.task.method, str(run.args.get("pref_loss"))):
        key, per = shape["key"], shape.get("per")
        value, base = run.args.number(key), run.args.number(per) if per else 1.0
        if run.args.is_set(key) and base > 0 and _is_plausible(key, value):
            words = f"`{key}` divided by `{per}`" if per else f"`{key}`"
            yield (_PublishedSetting(key, f"{words} is", value / base, shape, shape["source"]),)


@rule("TRA418", WARNING, about=_published_settings)
def far_from_published(_run: RunSettings, setting: _PublishedSetting) -> Findings:
    """A setting that decides what is learned is far outside of what any published run used.

    Why: the run goes through, and the model is ruined (a rate ten times too high, thirty epochs) or has learned
    nothing. The log does not say so. Reported above three times the highest value, and below a third of the lowest.
    Source: own (guidance)
    Fix: a value within the range, such as the one that is named. `overfit: true` in the header block for a run that is
    meant to learn its samples by heart.
    """
    if setting.ranged and setting.distance > _FAR_FACTOR * _ROUNDING_FACTOR:
        yield setting.key, setting.text


@rule("TRA419", NOTE, about=_published_settings)
def outside_published(_run: RunSettings, setting: _PublishedSetting) -> Findings:
    """A setting that decides what is learned is outside of what published runs used.

    Why: it may be right for the data; nobody has shown it.
    Source: own (guidance)
    Fix: none, where it was chosen on purpose; else the value that is named.
    """
    outside = 1.0 < setting.distance <= _FAR_FACTOR * _ROUNDING_FACTOR
    if not setting.ranged:
        default, far = float(setting.row["default"] or 0), _FAR_FACTOR_WITHOUT_RANGE * _ROUNDING_FACTOR
        outside = not default / far <= setting.value <= default * far
    if outside:
        yield setting.key, setting.text


def _is_plausible(name: str, value: float) -> bool:
    """True if no other rule reports the value as impossible (TRA410, TRA411)."""
    if name == "lora_dropout":
        return 0 <= value <= 1
    return value > 0 and not (name == "learning_rate" and value >= 0.1)


# Passes over the data for which a rate that never falls is unusual.
_MANY_EPOCHS = 3.0
# A run that is over so soon is started anew; a kill of a longer one is to cost no more than that.
_SHORT_RUN_SECONDS = 3600.0
_MAX_SECONDS_LOST = 2 * 3600.0
# Times as long as a checkpoint takes to be written, at least, from one to the next.
_MIN_SAVE_RATIO = 10


@rule("TRA420", WARNING)
def few_steps(run: RunSettings) -> Findings:
    """The run has only a few optimizer steps.

    Why: the effective batch is large for so few samples: the weights are changed a few dozen times, and the warm-up and
    the fall of the rate take most of them. LIMA took some 230 steps over 1,000 samples, s1 some 315.
    Source: own (guidance)
    Fix: a smaller `gradient_accumulation_steps`, fewer devices, or more samples.
    """
    passes = (run.data.rows or 0) * run.args.number("num_train_epochs")
    enough = passes >= guidance.FEWEST_STEPS * guidance.SMALL_BATCH  # fewer samples are told by DAT001
    counted_otherwise = run.args.number("max_steps") > 0 or run.batch.packing  # packed, rows are not sequences
    few = enough and not counted_otherwise and run.steps < guidance.FEWEST_STEPS
    if run.task.trains and few and not run.declared.overfit:
        rows = f"{run.data.rows or 0:,} samples in batches of {run.batch.effective_batch}"
        found = f"{rows} are {run.steps} steps in all, too few to learn much"
        keys = "lower `gradient_accumulation_steps` or `per_device_train_batch_size`"
        remedy = keys if run.batch.effective_batch > run.batch.world_size else "take fewer devices"
        yield "gradient_accumulation_steps", f"{found}; {remedy}, or add samples"


@rule("TRA421", NOTE)
def no_warmup(run: RunSettings) -> Findings:
    """The run starts at the full learning rate.

    Why: the first steps of Adam are the least certain; most published runs raise the rate over 3 to 10 % of the steps.
    LIMO took no warm-up.
    Source: own (guidance)
    Fix: `warmup_ratio: 0.03`.
    """
    schedule = run.args.get("lr_scheduler_type")
    if run.task.trains and schedule != "constant" and warmup_steps(run, max(run.steps, 1)) == 0:
        at = next((key for key in ("warmup_ratio", "warmup_steps") if run.args.is_set(key)), "learning_rate")
        yield at, "the run starts at the full learning rate, without warm-up; write `warmup_ratio: 0.03`"


@rule("TRA422", NOTE)
def rate_never_falls(run: RunSettings) -> Findings:
    """The learning rate stays the same over many passes.

    Why: with a rate that does not fall the loss does not settle, and each further pass overfits more.
    Source: own (experience)
    Fix: `lr_scheduler_type: cosine` or linear, or fewer epochs.
    """
    constant = run.args.get("lr_scheduler_type") in ("constant", "constant_with_warmup")
    if constant and run.task.trains and run.args.number("num_train_epochs") > _MANY_EPOCHS and not run.declared.overfit:
        found = f"the learning rate stays the same over {run.args.number('num_train_epochs'):g} epochs"
        yield "lr_scheduler_type", f"{found}; write `lr_scheduler_type: cosine`, so that it falls"


@rule("TRA423", NOTE)
def never_evaluated(run: RunSettings) -> Findings:
    """Nothing is measured on samples that are not trained on.

    Why: the training loss falls also where the model only learns its samples by heart. Nothing is reported if the run
    fits its machine, and would not with an evaluation of one sample at a time.
    Source: own (experience)
    Fix: `val_size: 0.02` with `eval_strategy: steps` and `eval_steps`, or `eval_dataset`; and
    `per_device_eval_batch_size: 1` if an evaluation with the default of 8 needs more memory than there is.
    """
    answers = run.task.trains and run.task.stage in ("sft", "dpo", "kto", "rm")
    if (
        answers
        and not run.evaluation.runs
        and not run.declared.overfit
        and not run.task.uses_asft_loss
        and run.data.rows != 1
    ):
        text = "nothing is measured on samples that are not trained on"
        usual = evaluation_settings(run, share=0.02)
        # From the quickest to the one that needs least memory.
        for settings in (usual, {**usual, "per_device_eval_batch_size": 1}):
            evaluated = with_arguments(run, settings)
            rarer = rarer_settings(evaluated, "eval") if _leaves_room(run, evaluated) else None
            if rarer is not None:
                yield "dataset", f"{text}; set {together({**settings, **rarer})}"
                return


def _leaves_room(run: RunSettings, changed: RunSettings) -> bool:
    """True if the changed run fits its devices or needs no more memory than before, or if that is not known without a
    simulation."""
    before, after = predict(run), predict(changed)
    if before.is_simulated or before.device_memory is None or after.device_memory is None:
        return True
    fits = after.device_verdict in ("fits", "unknown")
    return fits or after.device_memory.expected <= before.device_memory.expected


@rule("TRA424", WARNING, about=subjects.machine)
def kill_costs_much(run: RunSettings, machine: Machine) -> Findings:
    """Checkpoints lie so far apart that a kill would cost hours, or none is written before the end.

    Why: queues, drivers and power end long runs. What was computed since the last checkpoint is lost.
    Source: transformers/trainer_callback.py:DefaultFlowCallback.on_step_end
    Fix: the `save_steps` that is named: a checkpoint at least every hour on one node, every half hour on several.
    """
    judged = run.task.trains and run.args.get("save_strategy") not in ("no", "best")
    timed = predict_training_time(run) if judged else None
    if timed is None or timed.run is None or timed.run.expected < _SHORT_RUN_SECONDS:
        return
    total, step = timed.steps or run.steps, timed.step.expected
    worth = _MIN_SAVE_RATIO * checkpoint_write_seconds(run)  # more often would waste time (TRA926)
    steps = max(1, int(max(_SHORT_RUN_SECONDS if machine.nodes == 1 else _SHORT_RUN_SECONDS / 2, worth) / step))
    remedy = f"set {together(interval_settings(run, 'save', steps))}, about every {_format_hours(steps * step)}"
    every = save_interval(run, total)
    if not 0 < every < total:
        if timed.run.expected > 2 * worth:
            length = f"{run.steps:,} steps, about {_format_hours(timed.run.expected)}"
            yield (
                "save_steps",
                f"no checkpoint is written before the end of the run ({length}), so a killed run is lost; {remedy}",
            )
    elif every * step > max(_MAX_SECONDS_LOST, 2 * worth):
        found = f"a checkpoint is written every {_format_hours(every * step)}, so a killed run may lose that much"
        yield "save_steps", f"{found}; {remedy}"


@rule("TRA425", NOTE, about=subjects.machine)
def batch_follows_the_devices(run: RunSettings, machine: Machine) -> Findings:
    """Another number of devices than the recipe was written for changes the effective batch.

    Why: every device adds its micro batches to a step. With four times the devices a step takes four times the samples,
    and the run a quarter of the steps, at a learning rate that was chosen for the smaller batch.
    Source: transformers/trainer.py:Trainer.get_total_train_batch_size
    Fix: the `gradient_accumulation_steps` in the message, or another learning rate.
    """
    written = run.header.get("machine")
    if not run.task.trains or not isinstance(written, str) or written == str(machine):
        return
    try:
        before = parse_machine(written).world
    except RecipeError:  # another rule tells it
        return
    if before != run.batch.world_size:
        steps, remainder = divmod(run.batch.accumulation * before, run.batch.world_size)
        batch = run.batch.effective_batch * before // run.batch.world_size
        devices = (
            f"with {run.batch.world_size} {plural(run.batch.world_size, 'device')}, not the header block's {before}"
        )
        text = f"{devices}, the effective batch is {run.batch.effective_batch}"
        kept = f"write `gradient_accumulation_steps: {steps}` to keep {batch}" if steps and not remainder else ""
        smaller = f"set a smaller `per_device_train_batch_size` for {batch}, or adapt `learning_rate`"
        remedy = kept or f"no value of `gradient_accumulation_steps` gives {batch}: {smaller}"
        yield "gradient_accumulation_steps", f"{text} instead of {batch}; {remedy}"


def _format_hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"
