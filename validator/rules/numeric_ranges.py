"""TRA018, TRA020, TRA022 and TRA023: numbers outside the range that torch, peft or the run itself can work with."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from validator.rules.rule import ERROR, WARNING, FailsAt, Findings, rule
from validator.run.settings import RunSettings

_UNBOUNDED = float("inf")
_ABOVE_0 = 5e-324


def _uses_adam(run: RunSettings) -> bool:
    return "adam" in str(run.args.get("optim")) and not {"use_galore", "use_apollo"} & set(run.requested_optimizers)


def _samples_text(run: RunSettings) -> bool:
    return run.evaluation.generates_text and run.args.flag("do_sample")


_trains, _evaluates, _generates = (
    attrgetter("task.trains"),
    attrgetter("evaluation.runs"),
    attrgetter("evaluation.generates_text"),
)


def _is_on(key: str) -> Callable[[RunSettings], bool]:
    return lambda run: run.args.flag(key)


class NumericRange(NamedTuple):
    """From the lowest value to below the end, where `read` says that the number is used; outside, when it fails."""

    low: float
    end: float
    read: Callable[[RunSettings], bool]
    fails: FailsAt


# Each limit was seen in a real run of LLaMA-Factory (benchmarks/evidence/conformity/conformity.csv, group range).
_RANGES = {
    "adam_beta1": NumericRange(0, 1, _uses_adam, FailsAt.TRAINER),
    "adam_beta2": NumericRange(0, 1, _uses_adam, FailsAt.TRAINER),
    "adam_epsilon": NumericRange(0, _UNBOUNDED, _uses_adam, FailsAt.TRAINER),
    "neftune_noise_alpha": NumericRange(0, _UNBOUNDED, _trains, FailsAt.FIRST_STEP),
    "cutoff_len": NumericRange(1, _UNBOUNDED, _trains, FailsAt.FIRST_STEP),
    "dataloader_prefetch_factor": NumericRange(1, _UNBOUNDED, _trains, FailsAt.TRAINER),
    "dataloader_num_workers": NumericRange(0, _UNBOUNDED, _trains, FailsAt.TRAINER),
    "per_device_eval_batch_size": NumericRange(1, _UNBOUNDED, _evaluates, FailsAt.FIRST_EVALUATION),
    "eval_num_beams": NumericRange(0, _UNBOUNDED, _generates, FailsAt.FIRST_EVALUATION),  # 0 stands for the default
    "num_beams": NumericRange(1, _UNBOUNDED, _generates, FailsAt.FIRST_EVALUATION),
    "generation_num_beams": NumericRange(1, _UNBOUNDED, _generates, FailsAt.FIRST_EVALUATION),
    "generation_max_length": NumericRange(0, _UNBOUNDED, _generates, FailsAt.FIRST_EVALUATION),
    "temperature": NumericRange(_ABOVE_0, _UNBOUNDED, _samples_text, FailsAt.FIRST_EVALUATION),
    "top_p": NumericRange(0, _UNBOUNDED, _samples_text, FailsAt.FIRST_EVALUATION),
    "top_k": NumericRange(0, _UNBOUNDED, _samples_text, FailsAt.FIRST_EVALUATION),
    "repetition_penalty": NumericRange(_ABOVE_0, _UNBOUNDED, _generates, FailsAt.FIRST_EVALUATION),
    "apollo_rank": NumericRange(0, _UNBOUNDED, _is_on("use_apollo"), FailsAt.TRAINER),
    "oft_block_size": NumericRange(0, _UNBOUNDED, lambda run: run.task.method == "oft", FailsAt.MODEL_LOADING),
    "profiler_active_steps": NumericRange(1, _UNBOUNDED, _is_on("enable_torch_profiler"), FailsAt.TRAINER),
    "profiler_wait_steps": NumericRange(0, _UNBOUNDED, _is_on("enable_torch_profiler"), FailsAt.TRAINER),
    "profiler_warmup_steps": NumericRange(0, _UNBOUNDED, _is_on("enable_torch_profiler"), FailsAt.TRAINER),
    "profiler_repeat": NumericRange(0, _UNBOUNDED, _is_on("enable_torch_profiler"), FailsAt.TRAINER),
}
# An interval of zero is divided by; below zero it passes.
_INTERVALS: dict[str, tuple[Callable[[RunSettings], bool], FailsAt]] = {
    "eval_accumulation_steps": (_evaluates, FailsAt.FIRST_EVALUATION),
    "apollo_update_interval": (_is_on("use_apollo"), FailsAt.TRAINER),
    "galore_update_interval": (_is_on("use_galore"), FailsAt.TRAINER),
    "buffer_size": (_is_on("streaming"), FailsAt.DATASET),
    "gradient_accumulation_steps": (_trains, FailsAt.TRAINER),
    "badam_switch_interval": (_is_on("use_badam"), FailsAt.TRAINER),
}


@rule("TRA018", ERROR)
def number_out_of_range(run: RunSettings) -> Findings:
    """A number is outside its range.

    Why: torch or peft refuse it only when they use it, after the data is tokenized and the model loaded on every rank;
    what belongs to evaluation fails hours into the run.
    Source: torch/utils/data/dataloader.py:DataLoader.__init__, torch/utils/data/sampler.py:BatchSampler.__init__,
    torch/optim/adam.py:Adam.__init__, peft/tuners/oft/layer.py:OFTLayer.update_layer,
    transformers/generation/logits_process.py:TemperatureLogitsWarper.__init__
    Fix: the default, or a number within the limits named.
    """
    for key, (low, end, read, fails) in _RANGES.items():
        value = run.args.get(key)
        outside = isinstance(value, (int, float)) and not low <= value < end  # which .nan is, too
        if run.args.is_set(key) and outside and read(run):
            least = "above 0" if low == _ABOVE_0 else f"at least {low:g}"
            limit = f" and below {end:g}" if end < _UNBOUNDED else ""
            yield key, f"`{key}` is {value} and fails {fails}; it must be {least}{limit}"


@rule("TRA020", ERROR)
def seed_out_of_range(run: RunSettings) -> Findings:
    """The seed is below zero or has more than 32 bits.

    Why: refused at parse, on every rank: "Seed must be between 0 and 2**32 - 1".
    Source: transformers/trainer_utils.py:set_seed
    Fix: any whole number from 0 to 4294967295.
    """
    seed = run.args.get("seed")
    if isinstance(seed, int) and not 0 <= seed < 1 << 32:
        yield "seed", f"`seed` is {seed}, it must be at least 0 and at most {(1 << 32) - 1}"


@rule("TRA022", ERROR)
def interval_zero(run: RunSettings) -> Findings:
    """An interval is zero.

    Why: the run divides by it: ZeroDivisionError after the model is loaded on every rank, or at the first evaluation,
    hours into the run.
    Source: transformers/trainer.py:Trainer.evaluation_loop,
    transformers/trainer.py:Trainer.set_initial_training_values,
    llamafactory/train/trainer_utils.py:_create_galore_optimizer,
    llamafactory/train/trainer_utils.py:_create_apollo_optimizer,
    llamafactory/train/trainer_utils.py:_create_badam_optimizer
    Fix: at least 1, or leave it out.
    """
    for key, (read, fails) in _INTERVALS.items():
        if run.args.is_set(key) and run.args.get(key) == 0 and read(run):
            yield key, f"`{key}: {run.args.get(key)}` is divided by and fails {fails}; it must be at least 1"


@rule("TRA023", WARNING)
def accumulation_below_zero(run: RunSettings) -> Findings:
    """The accumulation is below zero.

    Why: the run goes on, with another number of samples in each step than anybody can have meant. There is no value
    that stands for an automatic choice in a recipe.
    Source: transformers/trainer.py:Trainer.set_initial_training_values
    Fix: at least 1.
    """
    if run.task.trains and run.args.number("gradient_accumulation_steps") < 0:
        yield "gradient_accumulation_steps", "the accumulation is below zero; write at least 1"
