"""TRA801 to TRA804, TRA407, TRA413, TRA508, TRA607 and PAR016: settings that the stage, the method or another
setting leaves without effect."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from functools import cache

from validator.knowledge import tables
from validator.rules.optimizer_choice import OPTIMIZER_NAMES
from validator.rules.rule import NOTE, WARNING, Findings, remove_keys, rule
from validator.run import launch_command
from validator.run.recipe_arguments import default_value
from validator.run.settings import RunSettings

Condition = Callable[[RunSettings], bool]
ConditionTable = tuple[tuple[str, Condition, str], ...]


def _method_is(*names: str) -> Condition:
    return lambda run: run.task.method in names


def _stage_is(*names: str) -> Condition:
    return lambda run: run.task.stage in names


def _is_any_on(*keys: str) -> Condition:
    return lambda run: any(run.args.flag(key) for key in keys)


def _template_has(part: str) -> Condition:
    return lambda run: run.template is None or bool(run.template.get(part))


def _has_towers(run: RunSettings) -> bool:
    return run.model is None or bool(run.model.arch.towers)


def _quantizes(run: RunSettings) -> bool:
    return run.quantization.is_requested


def _uses_ray(_run: RunSettings) -> bool:
    return launch_command.uses_ray()


def _trains_some_layers(run: RunSettings) -> bool:
    return run.task.method == "freeze" or run.args.flag("use_llama_pro")


def _uses_simpo(run: RunSettings) -> bool:
    return run.task.stage == "dpo" and run.args.get("pref_loss") == "simpo"


def _mixes_datasets(run: RunSettings) -> bool:
    """True if the recipe names several data sets, which LLaMA-Factory mixes (data/data_utils.py, merge_dataset)."""
    return any(len(run.args.words(key)) > 1 for key in ("dataset", "eval_dataset"))


def _evaluates_on_the_way(run: RunSettings) -> bool:
    needs_evaluations = run.args.get("save_strategy") == "best" or run.args.is_set("early_stopping_steps")
    return needs_evaluations or run.evaluation.while_training


# Keys (patterns), when LLaMA-Factory reads them, and that in words, which name the keys that decide
_READ_BY_METHOD: ConditionTable = (
    ("lora_rank lora_alpha lora_dropout", _method_is("lora"), "`finetuning_type: lora`"),
    ("lora_target additional_target create_new_adapter", _method_is("lora", "oft"), "`finetuning_type: lora` or `oft`"),
    ("oft_rank oft_block_size module_dropout", _method_is("oft"), "`finetuning_type: oft`"),
    ("freeze_trainable_modules freeze_extra_modules", _method_is("freeze"), "`finetuning_type: freeze`"),
    ("freeze_trainable_layers", _trains_some_layers, "`finetuning_type: freeze`"),
)
_READ_BY_STAGE: ConditionTable = (
    ("pref_beta pref_ftx", _stage_is("dpo", "kto"), "`stage: dpo` or `kto`"),
    ("pref_loss pref_bco_weight dpo_label_smoothing ld_alpha", _stage_is("dpo"), "`stage: dpo`"),
    ("simpo_gamma", _uses_simpo, "`stage: dpo` and `pref_loss: simpo`"),
    ("kto_chosen_weight kto_rejected_weight", _stage_is("kto"), "`stage: kto`"),
    ("ppo_* reward_model*", _stage_is("ppo"), "`stage: ppo`"),
    ("ref_model*", lambda run: run.task.needs_reference_logprobs, "a stage with a reference model"),
    ("use_dft_loss use_eaft_loss use_asft_loss compute_accuracy", _stage_is("sft"), "`stage: sft`"),
)
_READ_BY_NUMBER: ConditionTable = (("mix_strategy", _mixes_datasets, "several"),)
# Whoever sets these up means to use what is switched off.
_SWITCHED_OFF: ConditionTable = (
    ("galore_*", _is_any_on("use_galore"), "`use_galore`"),
    ("apollo_*", _is_any_on("use_apollo"), "`use_apollo`"),
    ("badam_*", _is_any_on("use_badam"), "`use_badam`"),
    ("swanlab_*", _is_any_on("use_swanlab"), "`use_swanlab`"),
    ("kt_*", _is_any_on("use_kt"), "`use_kt`"),
    ("fp8_backend", _is_any_on("fp8", "fp8_enable_fsdp_float8_all_gather"), "`fp8`"),
    ("quantization_type double_quantization quantization_method", _quantizes, "`quantization_bit`"),
    ("ray_num_workers ray_init_kwargs master_addr master_port", _uses_ray, "`USE_RAY=1` in the environment"),
)
_READ_BY_SWITCH: ConditionTable = (
    ("profiler_*", _is_any_on("enable_torch_profiler"), "`enable_torch_profiler`"),
    ("pissa_iter", _is_any_on("pissa_init"), "`pissa_init`"),
    ("loraplus_lr_embedding", lambda run: run.args.is_set("loraplus_lr_ratio"), "`loraplus_lr_ratio`"),
    ("asft_alpha", _is_any_on("use_asft_loss"), "`use_asft_loss`"),
    ("eaft_alpha", _is_any_on("use_eaft_loss"), "`use_eaft_loss`"),
    ("buffer_size", _is_any_on("streaming"), "`streaming`"),
    ("metric_for_best_model greater_is_better", _evaluates_on_the_way, "`eval_strategy`"),
    ("eval_steps", lambda run: run.evaluation.strategy == "steps", "`eval_strategy: steps`"),
    ("save_steps", lambda run: run.args.get("save_strategy") in ("steps", "best"), "`save_strategy: steps`"),
    ("image_* video_*", _template_has("media"), "a template for images"),
    ("freeze_vision_tower freeze_multi_modal_* freeze_language_model", _has_towers, "a multimodal model"),
    ("enable_thinking preserve_thinking", _template_has("reasoning"), "a template of a reasoning model"),
)


@cache
def _conditions_by_key(table: ConditionTable) -> Mapping[str, tuple[Condition, str]]:
    """Return the entries of a table by recipe key: the condition under which LLaMA-Factory reads the key, and that
    condition in words. In the table, a name with a star stands for all keys that begin with it."""
    names = tables.json_table("arguments")["arguments"]
    by_key: dict[str, tuple[Condition, str]] = {}
    for patterns, read, words in table:
        for pattern in patterns.split():
            keys = fnmatch.filter(names, pattern) if pattern.endswith("*") else [pattern]
            by_key.update(dict.fromkeys(keys, (read, words)))
    return by_key


def never_read(run: RunSettings, key: str) -> bool:
    """True if LLaMA-Factory does not read the key under this stage, method or number of data sets, whatever its
    value."""
    tables = (_conditions_by_key(table) for table in (_READ_BY_METHOD, _READ_BY_STAGE, _READ_BY_NUMBER))
    return any(key in conditions and not conditions[key][0](run) for conditions in tables)


def _settings_without_effect(run: RunSettings, table: ConditionTable, meant: bool = False) -> Findings:
    conditions = _conditions_by_key(table)
    for key in run.args.values.keys() & conditions.keys():
        read, words = conditions[key]
        # A key that decides, and is written in a way that LLaMA-Factory does not take, says nothing yet.
        unclear = run.refused_keys and not run.refused_keys.isdisjoint(re.findall(r"\w+", words))
        if run.args.is_set(key) and run.args.values[key] != default_value(key) and not unclear and not read(run):
            remedy = f"set {words}, or remove `{key}`" if meant else f"remove `{key}`"
            yield key, f"`{key}` has no effect without {words}; {remedy}", None if meant else remove_keys(key)


@rule("TRA801", WARNING)
def method_leaves_unread(run: RunSettings) -> Findings:
    """A setting of another fine-tuning method is set.

    Why: it has no effect; often `finetuning_type` is not what was meant.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/model/adapter.py:_setup_lora_tuning,
    llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: remove it, or set the method it belongs to.
    """
    yield from _settings_without_effect(run, _READ_BY_METHOD)


@rule("TRA802", WARNING)
def stage_leaves_unread(run: RunSettings) -> Findings:
    """A setting of another stage is set.

    Why: it has no effect; often `stage` is not what was meant.
    Source: llamafactory/train/tuner.py:_training_function
    Fix: remove it, or set the stage it belongs to.
    """
    yield from _settings_without_effect(run, _READ_BY_STAGE)


@rule("TRA803", NOTE)
def switch_leaves_unread(run: RunSettings) -> Findings:
    """A setting is given without the switch that makes LLaMA-Factory read it.

    Why: it has no effect.
    Source: llamafactory/train/trainer_utils.py:create_custom_optimizer,
    llamafactory/model/model_utils/quantization.py:configure_quantization, llamafactory/hparams/parser.py:get_train_args
    Fix: set the switch, or remove the setting.
    """
    yield from _settings_without_effect(run, _READ_BY_SWITCH)


@rule("TRA804", WARNING)
def method_switched_off(run: RunSettings) -> Findings:
    """An optimizer, a tracker, quantization or Ray is set up and not switched on.

    Why: the run goes on without it: with the memory of another optimizer or of weights in 16 bits, without the record
    of the run, or by torchrun, which takes its address from MASTER_ADDR in the environment.
    Source: llamafactory/train/trainer_utils.py:create_custom_optimizer,
    llamafactory/model/model_utils/quantization.py:configure_quantization,
    llamafactory/train/trainer_utils.py:get_swanlab_callback, llamafactory/train/tuner.py:run_exp
    Fix: set the switch, or remove the setting.
    """
    yield from _settings_without_effect(run, _SWITCHED_OFF, meant=True)


@rule("TRA407", WARNING)
def optimizer_unread(run: RunSettings) -> Findings:
    """The recipe asks for several optimizers, and LLaMA-Factory makes only one.

    Why: LLaMA-Factory takes the first of GaLore, APOLLO, LoRA+, BAdam, Adam-mini, Muon; the others, silently, not.
    Source: llamafactory/train/trainer_utils.py:create_custom_optimizer
    Fix: keep one.
    """
    active = run.requested_optimizers
    for key in active[1:]:
        if not (active[0] in OPTIMIZER_NAMES and key in OPTIMIZER_NAMES):
            yield key, f"`{key}` has no effect beside `{active[0]}`; remove `{key}`, or `{active[0]}`"


@rule("TRA413", NOTE)
def warmup_unread(run: RunSettings) -> Findings:
    """A warm-up is set for a schedule that has none.

    Why: `constant` starts at the full rate.
    Source: transformers/optimization.py:get_scheduler
    Fix: `lr_scheduler_type: constant_with_warmup`.
    """
    for key in ("warmup_steps", "warmup_ratio"):
        if run.args.get("lr_scheduler_type") == "constant" and run.args.number(key) > 0:
            found = f"`lr_scheduler_type: constant` has no warm-up, so `{key}` has no effect"
            yield key, f"{found}; write `lr_scheduler_type: constant_with_warmup`"


@rule("TRA508", WARNING)
def loss_unread(run: RunSettings) -> Findings:
    """The recipe asks for two supervised losses, and only one is used.

    Why: LLaMA-Factory takes the first of DFT, EAFT and ASFT.
    Source: llamafactory/train/sft/trainer.py:CustomSeq2SeqTrainer.__init__
    Fix: keep one.
    """
    active = [key for key in ("use_dft_loss", "use_eaft_loss", "use_asft_loss") if run.args.flag(key)]
    for key in active[1:] if run.task.stage == "sft" else ():
        yield key, f"`{key}` has no effect beside `{active[0]}`; remove `{key}`, or `{active[0]}`"


@rule("TRA607", WARNING)
def packing_unread(run: RunSettings) -> Findings:
    """Packing is set in a stage that does not pack.

    Why: only sft and pt pack; elsewhere each sample merely loses one token of its length.
    Source: llamafactory/data/loader.py:_get_dataset_processor
    Fix: remove `packing`.
    """
    if run.task.stage in ("rm", "dpo", "kto", "ppo") and run.args.flag("packing"):
        yield "packing", f"stage {run.task.stage} does not pack; remove `packing`"


@rule("PAR016", WARNING)
def fsdp_config_ignored(run: RunSettings) -> Findings:
    """`fsdp_config` is set without `fsdp`.

    Why: nothing is sharded; every device holds the whole model.
    Source: transformers/training_args.py:TrainingArguments._process_fsdp_args
    Fix: `fsdp: full_shard auto_wrap`, or remove `fsdp_config`.
    """
    if run.args.get("fsdp_config") and not run.fsdp_words:
        found = "`fsdp_config` has no effect without `fsdp`, so nothing is sharded"
        yield "fsdp_config", f"{found}; add `fsdp: full_shard auto_wrap`"
