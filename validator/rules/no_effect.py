"""TRA801 to TRA805, TRA407, TRA413, TRA508, TRA607 and PAR016: settings that the stage, the method or another
setting leaves without effect."""

from __future__ import annotations

from validator.rules.optimizer_choice import OPTIMIZER_NAMES
from validator.rules.read_conditions import (
    READ_BY_CONTEXT,
    READ_BY_METHOD,
    READ_BY_STAGE,
    READ_BY_SWITCH,
    SWITCHED_OFF,
    ConditionTable,
    conditions_by_key,
)
from validator.rules.rule import NOTE, WARNING, Findings, remove_keys, rule
from validator.run.recipe_arguments import default_value
from validator.run.settings import RunSettings
from validator.wording import quoted_names


def _settings_without_effect(
    run: RunSettings, table: ConditionTable, meant: bool = False, at_default: bool = True
) -> Findings:
    """Yield a finding for each condition of the table that is not met while the recipe sets keys that depend on it.
    `meant`: the recipe means what is switched off, so the remedy is to switch it on. `at_default`: a key counts at its
    default, too, unless the default asks for nothing, as false and 0 do."""
    conditions, unread = conditions_by_key(table), dict[str, list[str]]()
    for key, value in run.args.values.items():
        is_asked = value != default_value(key) or (at_default and bool(value))
        if key in conditions and run.args.is_set(key) and is_asked and not conditions[key][0](run):
            unread.setdefault(conditions[key][1], []).append(key)
    for words, keys in unread.items():
        verb = "has" if len(keys) == 1 else "have"
        removal = f"remove `{keys[0]}`" if len(keys) == 1 else "remove them"
        remedy = f"set {words}, or {removal}" if meant else removal
        text = f"{quoted_names(keys)} {verb} no effect without {words}; {remedy}"
        yield keys[0], text, None if meant else remove_keys(*keys)


@rule("TRA801", WARNING)
def method_leaves_unread(run: RunSettings) -> Findings:
    """A setting of another fine-tuning method is set.

    Why: it has no effect; often `finetuning_type` is not what was meant.
    Source: llamafactory/model/adapter.py:init_adapter, llamafactory/model/adapter.py:_setup_lora_tuning,
    llamafactory/model/adapter.py:_setup_freeze_tuning
    Fix: remove it, or set the method it belongs to.
    """
    yield from _settings_without_effect(run, READ_BY_METHOD)


@rule("TRA802", WARNING)
def stage_leaves_unread(run: RunSettings) -> Findings:
    """A setting of another stage is set.

    Why: it has no effect; often `stage` is not what was meant.
    Source: llamafactory/train/tuner.py:_training_function
    Fix: remove it, or set the stage it belongs to.
    """
    yield from _settings_without_effect(run, READ_BY_STAGE)


@rule("TRA803", NOTE)
def switch_leaves_unread(run: RunSettings) -> Findings:
    """A setting is given without the switch that makes LLaMA-Factory read it.

    Why: it has no effect.
    Source: llamafactory/train/trainer_utils.py:create_custom_optimizer,
    llamafactory/model/model_utils/quantization.py:configure_quantization,
    llamafactory/hparams/parser.py:get_train_args, llamafactory/train/sft/workflow.py:run_sft,
    transformers/trainer.py:Trainer.train
    Fix: set the switch, or remove the setting.
    """
    yield from _settings_without_effect(run, READ_BY_SWITCH)
    yield from _settings_without_effect(run, READ_BY_CONTEXT, at_default=False)


@rule("TRA804", WARNING)
def method_switched_off(run: RunSettings) -> Findings:
    """An optimizer, a tracker, quantization, fp8, an upload or Ray is set up and not switched on.

    Why: the run goes on without it: with the memory of another optimizer or of weights in 16 bits, without the record
    of the run or the model on the hub, or by torchrun, which takes its address from MASTER_ADDR in the environment.
    Whoever writes `quantization_type: nf4` means 4 bits, although nf4 is the default.
    Source: llamafactory/train/trainer_utils.py:create_custom_optimizer,
    llamafactory/model/model_utils/quantization.py:configure_quantization,
    llamafactory/train/trainer_utils.py:get_swanlab_callback, llamafactory/train/trainer_utils.py:create_ref_model,
    llamafactory/train/trainer_utils.py:create_modelcard_and_push, llamafactory/hparams/parser.py:get_train_args,
    llamafactory/train/tuner.py:run_exp
    Fix: set the switch, or remove the setting.
    """
    yield from _settings_without_effect(run, SWITCHED_OFF, meant=True)


@rule("TRA805", WARNING, since="llamafactory 0.9.4", until="llamafactory 0.9.5")
def fp8_unread_by_0_9_4(run: RunSettings) -> Findings:
    """fp8 is asked for, and the recipe admits LLaMA-Factory 0.9.4, which never turns it on.

    Why: 0.9.4 has the key, and its trainers look for it among arguments that no stage gives them: the run computes in
    16 bits without a word of it. 0.9.5 turns it on in `stage: sft` and `pt`.
    Source: llamafactory/train/sft/workflow.py:run_sft, llamafactory/train/fp8_utils.py:configure_fp8_environment
    Fix: `llamafactory: ">=0.9.5"` in the header block.
    """
    if run.args.flag("fp8"):
        found = "LLaMA-Factory 0.9.4, which the recipe allows, never turns `fp8` on"
        yield "fp8", f'{found}; write `# llamafactory: ">=0.9.5"` into the header block'


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
