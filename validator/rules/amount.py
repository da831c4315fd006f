"""TRA007, TRA009, TRA010, TRA012, TRA015 and TRA016: how much is trained, and how often something is done."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules import edits
from validator.rules.rule import Finding, rule

_UNLIMITED = edits.drop("max_samples", safe=False)
_EXAMPLE = 1_000  # rows, as every example of LLaMA-Factory has it; a larger number its author chose
_INTERVALS = (
    ("logging_steps", "logging_strategy"),
    ("eval_steps", "eval_strategy"),
    ("save_steps", "save_strategy"),
)


@rule("TRA007", Severity.ERROR)
def interval_refused(job: Job) -> Iterator[Finding]:
    """An interval of logging, evaluation or saving is zero or not a whole number of steps.

    Why: refused at parse, on every rank. Below 1 it is a share of all steps; above 1 it must be whole.
    Source: transformers/training_args.py:TrainingArguments._validate_args
    Fix: a whole number of steps, or a share such as 0.1.
    """
    for key, strategy in _INTERVALS:
        value = job.number(key)
        if job.get(strategy) != "steps":
            continue
        if key == "logging_steps" and job.get(key) == 0:
            yield key, "`logging_steps` is 0; set at least 1, or `logging_strategy: epoch`"
        elif value > 1 and value != int(value):
            text = f"`{key}` is {value:g}, above 1 it must be a whole number; write {int(value)}"
            yield key, text, edits.put(key, int(value))


@rule("TRA009", Severity.WARNING)
def sample_limit_contradicts(job: Job) -> Iterator[Finding]:
    """`max_samples` cuts the data below the number of samples the recipe is made for.

    Why: every official example carries `max_samples: 1000`; copied along, the run trains on the first rows of each data
    set only, with no message.
    Source: llamafactory/data/loader.py:_load_single_dataset, own (LLaMA-Factory's examples)
    Fix: remove `max_samples`.
    """
    limit = job.number("max_samples")
    sets = max(1, len(job.words("dataset")))
    if limit > 0 and job.samples and limit * sets < job.samples:
        yield (
            "max_samples",
            (
                f"`max_samples: {limit:.0f}` leaves at most {limit * sets:,.0f} rows of the {job.samples:,} "
                "recommended; remove it"
            ),
            _UNLIMITED,
        )


@rule("TRA010", Severity.NOTE)
def sample_limit(job: Job) -> Iterator[Finding]:
    """`max_samples`, a debugging aid, is set.

    Why: the run trains on the first rows of each data set only.
    Source: llamafactory/data/loader.py:_load_single_dataset
    Fix: remove it for a real run.
    """
    limit = job.number("max_samples")
    if not 0 < limit <= _EXAMPLE or not job.trains or job.samples or job.flag("streaming"):
        return
    counted = [one.rows for one in job.datasets if one.rows and not one.rows.problem]
    whole = len(counted) == len(job.words("dataset")) and all(rows.number <= limit for rows in counted)
    told = any(rows.number > 2 * limit for rows in counted)  # by DAT004
    if not whole and not told:
        text = f"only the first {limit:,.0f} rows of each data set are used; remove `max_samples` for all"
        yield "max_samples", text, _UNLIMITED


@rule("TRA012", Severity.ERROR)
def limit_refused(job: Job) -> Iterator[Finding]:
    """A lower limit is above its upper limit, or a count that must be positive is not.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/model_args.py:ProcessorArguments.__post_init__,
    transformers/training_args.py:TrainingArguments.__post_init__,
    transformers/training_args.py:TrainingArguments._validate_args
    Fix: as the message says.
    """
    for kind in ("image", "video"):
        most, least = job.number(f"{kind}_max_pixels"), job.number(f"{kind}_min_pixels")
        if most < least:
            yield f"{kind}_max_pixels", f"`{kind}_max_pixels` {most:.0f} is below `{kind}_min_pixels` {least:.0f}"
    if job.has("torch_empty_cache_steps") and job.number("torch_empty_cache_steps") <= 0:
        yield "torch_empty_cache_steps", "`torch_empty_cache_steps` must be above 0; remove it to never empty the cache"
    if job.has("dataloader_prefetch_factor") and job.get("dataloader_num_workers") == 0:
        yield "dataloader_prefetch_factor", "prefetching needs workers; set `dataloader_num_workers` or remove it"


@rule("TRA015", Severity.NOTE)
def steps_over_epochs(job: Job) -> Iterator[Finding]:
    """Both a number of steps and a number of epochs are set.

    Why: `max_steps` wins; `num_train_epochs` has no effect.
    Source: transformers/trainer.py:Trainer.set_initial_training_values
    Fix: remove one.
    """
    if job.number("max_steps") > 0 and "num_train_epochs" in job.values:
        text = f"`max_steps: {job.get('max_steps')}` wins; `num_train_epochs` has no effect"
        yield "num_train_epochs", text, edits.drop("num_train_epochs")


@rule("TRA016", Severity.ERROR)
def batch_not_positive(job: Job) -> Iterator[Finding]:
    """The micro batch is below 1.

    Why: fails when the trainer is built, after the data is tokenized and the model loaded on every rank.
    Source: torch/utils/data/sampler.py:BatchSampler.__init__
    Fix: at least 1.
    """
    value = job.get("per_device_train_batch_size")
    if job.trains and isinstance(value, (int, float)) and not isinstance(value, bool) and value < 1:
        yield "per_device_train_batch_size", f"`per_device_train_batch_size` is {value}, it must be at least 1"
