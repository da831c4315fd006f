"""TRA8xx: settings that the stage, the method or another setting leaves without effect."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import takewhile

from validator.diagnostic import Severity
from validator.job import ray
from validator.job.job import Job
from validator.job.values import default
from validator.rules import edits
from validator.rules.rule import Finding, rule
from validator.tables import data

Read = Callable[[Job], bool]
Table = tuple[tuple[tuple[str, ...], Read, str], ...]


def _method(*names: str) -> Read:
    return lambda job: job.method in names


def _stage(*names: str) -> Read:
    return lambda job: job.stage in names


def _switch(*keys: str) -> Read:
    return lambda job: any(job.flag(key) for key in keys)


def _watches(job: Job) -> bool:
    asked = job.get("save_strategy") == "best" or job.has("early_stopping_steps")
    return asked or job.evaluates_while_training


def _media(job: Job) -> bool:
    return job.template is None or bool(job.template.get("media"))


def _reasons(job: Job) -> bool:
    return job.template is None or bool(job.template.get("reasoning"))


# Keys (patterns), when LLaMA-Factory reads them, and that in words, which name the keys that decide
_BY_METHOD: Table = (
    (("lora_rank", "lora_alpha", "lora_dropout"), _method("lora"), "`finetuning_type: lora`"),
    (
        ("lora_target", "additional_target", "create_new_adapter"),
        _method("lora", "oft"),
        "`finetuning_type: lora` or `oft`",
    ),
    (("oft_rank", "oft_block_size", "module_dropout"), _method("oft"), "`finetuning_type: oft`"),
    (("freeze_trainable_modules", "freeze_extra_modules"), _method("freeze"), "`finetuning_type: freeze`"),
    (
        ("freeze_trainable_layers",),
        lambda job: job.method == "freeze" or job.flag("use_llama_pro"),
        "`finetuning_type: freeze`",
    ),
)
_BY_STAGE: Table = (
    (("pref_beta", "pref_ftx"), _stage("dpo", "kto"), "`stage: dpo` or `kto`"),
    (("pref_loss", "pref_bco_weight", "dpo_label_smoothing", "ld_alpha"), _stage("dpo"), "`stage: dpo`"),
    (
        ("simpo_gamma",),
        lambda job: job.stage == "dpo" and job.get("pref_loss") == "simpo",
        "`stage: dpo` with `pref_loss: simpo`",
    ),
    (("kto_chosen_weight", "kto_rejected_weight"), _stage("kto"), "`stage: kto`"),
    (("ppo_*", "reward_model*"), _stage("ppo"), "`stage: ppo`"),
    (
        ("ref_model*",),
        lambda job: job.compares,
        "a stage with a reference model",
    ),
    (("use_dft_loss", "use_eaft_loss", "use_asft_loss", "compute_accuracy"), _stage("sft"), "`stage: sft`"),
)
# With one data set there is nothing to mix (data/data_utils.py, merge_dataset).
_BY_NUMBER: Table = (
    (("mix_strategy",), lambda job: any(len(job.words(key)) > 1 for key in ("dataset", "eval_dataset")), "several"),
)
# Whoever sets these up means to use what is switched off.
_SWITCHED_OFF: Table = (
    (("galore_*",), _switch("use_galore"), "`use_galore`"),
    (("apollo_*",), _switch("use_apollo"), "`use_apollo`"),
    (("badam_*",), _switch("use_badam"), "`use_badam`"),
    (("swanlab_*",), _switch("use_swanlab"), "`use_swanlab`"),
    (("kt_*",), _switch("use_kt"), "`use_kt`"),
    (("fp8_backend",), _switch("fp8", "fp8_enable_fsdp_float8_all_gather"), "`fp8`"),
    (
        ("quantization_type", "double_quantization", "quantization_method"),
        lambda job: job.quantization.asked,
        "`quantization_bit`",
    ),
    (
        ("ray_num_workers", "ray_init_kwargs", "master_addr", "master_port"),
        lambda _job: ray.on(),
        "`USE_RAY=1` in the environment",
    ),
)
_BY_SWITCH: Table = (
    (("profiler_*",), _switch("enable_torch_profiler"), "`enable_torch_profiler`"),
    (("pissa_iter",), _switch("pissa_init"), "`pissa_init`"),
    (("loraplus_lr_embedding",), lambda job: job.has("loraplus_lr_ratio"), "`loraplus_lr_ratio`"),
    (("asft_alpha",), _switch("use_asft_loss"), "`use_asft_loss`"),
    (("eaft_alpha",), _switch("use_eaft_loss"), "`use_eaft_loss`"),
    (("buffer_size",), _switch("streaming"), "`streaming`"),
    (("metric_for_best_model", "greater_is_better"), _watches, "`eval_strategy`"),
    (("eval_steps",), lambda job: job.evaluation == "steps", "`eval_strategy: steps`"),
    (("save_steps",), lambda job: job.get("save_strategy") in ("steps", "best"), "`save_strategy: steps`"),
    (("image_*", "video_*"), _media, "a template for images"),
    (
        ("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model"),
        lambda job: job.model is None or bool(job.model.arch.towers),
        "a model that sees or hears",
    ),
    (("enable_thinking", "preserve_thinking"), _reasons, "a template that thinks"),
)


@cache
def _conditions(table: Table) -> Mapping[str, tuple[Read, str]]:
    """The table by key, its patterns spelled out."""
    names = sorted(data.table("arguments")["arguments"])
    return {key: (read, words) for patterns, read, words in table for p in patterns for key in _matching(names, p)}


def _matching(names: list[str], pattern: str) -> list[str]:
    """The names, of sorted ones, that a pattern means: itself, or all that begin as it does, up to its star."""
    if not pattern.endswith("*"):
        return [pattern]
    start = pattern[:-1]
    return list(takewhile(lambda name: name.startswith(start), names[bisect_left(names, start) :]))


def never_read(job: Job, key: str) -> bool:
    """Whether the stage, the method or the number of data sets leaves the key unread, whatever its value."""
    tables = (_conditions(table) for table in (_BY_METHOD, _BY_STAGE, _BY_NUMBER))
    return any(key in conditions and not conditions[key][0](job) for conditions in tables)


def _open(job: Job, words: str) -> bool:
    """Whether a key that decides is written in a way that LLaMA-Factory does not take, so that it says nothing yet."""
    return bool(job.unclear) and not job.unclear.isdisjoint(re.findall(r"\w+", words))


def _unread(job: Job, table: Table, meant: bool = False) -> Iterator[Finding]:
    conditions = _conditions(table)
    remedy = "set that, or remove it" if meant else "remove it"
    for key in job.values.keys() & conditions.keys():
        read, words = conditions[key]
        if job.has(key) and job.values[key] != default(key) and not (_open(job, words) or read(job)):
            yield key, f"`{key}` has no effect without {words}; {remedy}", None if meant else edits.drop(key)


@rule("TRA801", Severity.WARNING)
def method_leaves_unread(job: Job) -> Iterator[Finding]:
    """A setting of another fine-tuning method is set.

    Why: it has no effect; often `finetuning_type` is not what was meant.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/model/adapter.py:_setup_lora_tuning,
    llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: remove it, or set the method it belongs to.
    """
    yield from _unread(job, _BY_METHOD)


@rule("TRA802", Severity.WARNING)
def stage_leaves_unread(job: Job) -> Iterator[Finding]:
    """A setting of another stage is set.

    Why: it has no effect; often `stage` is not what was meant.
    Source: llamafactory/train/tuner.py:_training_function
    Fix: remove it, or set the stage it belongs to.
    """
    yield from _unread(job, _BY_STAGE)


@rule("TRA803", Severity.NOTE)
def switch_leaves_unread(job: Job) -> Iterator[Finding]:
    """A setting is given without the switch that makes LLaMA-Factory read it.

    Why: it has no effect.
    Source: llamafactory/train/trainer_utils.py:create_custom_optimizer,
    llamafactory/model/model_utils/quantization.py:configure_quantization, llamafactory/hparams/parser.py:get_train_args
    Fix: set the switch, or remove the setting.
    """
    yield from _unread(job, _BY_SWITCH)


@rule("TRA804", Severity.WARNING)
def method_switched_off(job: Job) -> Iterator[Finding]:
    """An optimizer, a tracker, quantization or Ray is set up and not switched on.

    Why: the run goes on without it: with the memory of another optimizer or of weights in 16 bits, without the record
    of the run, or by torchrun, which takes its address from MASTER_ADDR in the environment.
    Source: llamafactory/train/trainer_utils.py:create_custom_optimizer,
    llamafactory/model/model_utils/quantization.py:configure_quantization,
    llamafactory/train/trainer_utils.py:get_swanlab_callback, llamafactory/train/tuner.py:run_exp
    Fix: set the switch, or remove the setting.
    """
    yield from _unread(job, _SWITCHED_OFF, meant=True)
