"""TRA5xx: preference stages (dpo, kto, rm, ppo) and other losses."""

from __future__ import annotations

from validator.knowledge import releases
from validator.knowledge.models import Model
from validator.rules import subjects
from validator.rules.rule import ERROR, WARNING, Findings, rule
from validator.run.checkout import find_checkout
from validator.run.settings import RunSettings

_TRAINED_AS_SIGMOID = ("hinge", "ipo", "kto_pair")


@rule("TRA501", ERROR, since="llamafactory 0.9.4")
def ppo_impossible(run: RunSettings) -> Findings:
    """PPO cannot run with the trl that LLaMA-Factory installs.

    Why: its trainer asks for trl 0.8.6 to 0.9.6 while the package needs 0.18 to 0.24: an ImportError after policy,
    reference and reward model are loaded on every rank. DISABLE_VERSION_CHECK does not help.
    Source: llamafactory/train/ppo/trainer.py:CustomPPOTrainer.__init__, llamafactory/extras/misc.py:check_dependencies
    Fix: `stage: dpo` or `kto`; or LLaMA-Factory 0.9.3 with its own trl.
    """
    source = find_checkout(run.workspace.recipe)  # the package's trl changed between 0.9.3 and 0.9.4
    if run.task.stage == "ppo" and not (source and source.is_between):
        judged = releases.newest_pair()[0]
        found = f"stage ppo needs trl 0.8.6 to 0.9.6, but LLaMA-Factory {judged} needs trl 0.18 to 0.24"
        yield "stage", found + "; write `stage: dpo` or `stage: kto`"


@rule("TRA502", ERROR)
def ppo_needs(run: RunSettings) -> Findings:
    """PPO lacks a setting that it needs, or has one that it refuses.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__,
    llamafactory/hparams/parser.py:get_train_args
    Fix: `do_train: true`, a `reward_model`, of a type that fits the method; no S^2 attention; reports to wandb,
    tensorboard or trackio.
    """
    if run.task.stage != "ppo":
        return
    kind = run.args.get("reward_model_type")
    if not run.args.is_set("reward_model"):
        yield "reward_model", "stage ppo needs a reward model; set `reward_model` to its folder"
    elif kind == "lora" and run.task.method != "lora":
        found = f"a LoRA reward model needs `finetuning_type: lora`, not {run.task.method}"
        yield "reward_model_type", f"{found}; set `finetuning_type: lora`, or `reward_model_type: full`"
    if not run.task.trains:
        yield "do_train", "stage ppo only trains; set `do_train: true`"
    if run.args.flag("shift_attn"):
        yield "shift_attn", "`shift_attn` is refused in stage ppo; remove `shift_attn`"
    for key in ("use_kt", "use_unsloth"):
        if kind == "lora" and run.args.flag(key):
            remedy = f"set `reward_model_type: full`, or remove `{key}`"
            yield key, f"`{key}` is refused with a LoRA reward model; {remedy}"


@rule("TRA511", ERROR, since="deepspeed 0.16.0")
def ppo_accumulates(run: RunSettings) -> Findings:
    """PPO accumulates gradients under DeepSpeed on several devices.

    Why: trl's step enters `no_sync` of DeepSpeed 0.16 and later for all micro batches but the last: "no_sync context
    manager is incompatible with gradient partitioning logic of ZeRO stage 3", and of stage 2; under stages 0 and 1 "It
    is illegal to call Engine.step() inside no_sync context manager" (all four seen in runs on two processes).
    Source: llamafactory/train/ppo/trainer.py:CustomPPOTrainer.__init__,
    accelerate/accelerator.py:Accelerator.accumulate, deepspeed/runtime/engine.py:DeepSpeedEngine.no_sync
    Fix: `gradient_accumulation_steps: 1`, with a larger `per_device_train_batch_size` for as many samples in a step,
    or DeepSpeed 0.15.4.
    """
    accumulates = run.task.stage == "ppo" and run.batch.accumulation > 1
    can_start = run.releases.requires(until="llamafactory 0.9.4")
    if accumulates and can_start and run.deepspeed and run.batch.world_size > 1:
        found = "stage ppo stops at the first step if it accumulates gradients under DeepSpeed 0.16 or later"
        remedy = "set `gradient_accumulation_steps: 1`, or install DeepSpeed 0.15.4"
        yield "gradient_accumulation_steps", f"{found}; {remedy}"


@rule("TRA512", WARNING)
def reference_without_adapter(run: RunSettings) -> Findings:
    """A preference stage goes on with an adapter, and its reference is the model without that adapter.

    Why: with LoRA the reference is the model with its adapter turned off. If the adapter comes from supervised tuning,
    the reference is the model before that tuning, and the loss drives the model away from it (LLaMA-Factory issue
    8459). It is right where an earlier run of the same stage goes on.
    Source: llamafactory/train/dpo/trainer.py:CustomDPOTrainer.compute_reference_log_probs,
    llamafactory/train/kto/trainer.py:CustomKTOTrainer.compute_reference_log_probs,
    llamafactory/model/adapter.py:_setup_lora_tuning
    Fix: `create_new_adapter: true`, which merges the adapter into the model first. Quantized weights take no merger:
    `ref_model` with `ref_model_adapters`.
    """
    adapter = run.args.get("adapter_name_or_path")
    can_merge = not run.quantization.is_quantized
    is_merged = can_merge and run.args.flag("create_new_adapter")
    compares = run.task.needs_reference_logprobs and run.task.method == "lora" and not run.args.is_set("ref_model")
    if compares and run.task.trains and adapter and not is_merged:
        found = f"the reference of stage {run.task.stage} is the model without `{adapter}`"
        copied = f"`ref_model: {run.args.get('model_name_or_path')}` with `ref_model_adapters: {adapter}`"
        remedy = f"set `create_new_adapter: true`, which merges it first, or {copied}" if can_merge else f"set {copied}"
        yield "adapter_name_or_path", f"{found}; if that comes from another stage, such as sft, {remedy}"


@rule("TRA503", ERROR)
def smoothing_refused(run: RunSettings) -> Findings:
    """Label smoothing is set for a preference loss that has none.

    Why: refused at parse, on every rank.
    Source: llamafactory/hparams/finetuning_args.py:FinetuningArguments.__post_init__
    Fix: `pref_loss: sigmoid`, or no `dpo_label_smoothing`.
    """
    loss = run.args.get("pref_loss")
    if run.task.stage == "dpo" and loss != "sigmoid" and run.args.number("dpo_label_smoothing") > 1e-6:
        found = f"`dpo_label_smoothing` needs `pref_loss: sigmoid`, not {loss}"
        yield "dpo_label_smoothing", f"{found}; remove `dpo_label_smoothing`, or write `pref_loss: sigmoid`"


@rule("TRA504", WARNING, since="llamafactory 0.9.4")
def loss_replaced(run: RunSettings) -> Findings:
    """LLaMA-Factory trains another preference loss than the recipe names.

    Why: from trl 0.20 on, LLaMA-Factory calls its loss without the name, and sigmoid is trained, with no message.
    Source: llamafactory/train/dpo/trainer.py:CustomDPOTrainer.compute_preference_loss,
    trl/trainer/dpo_trainer.py:DPOTrainer.dpo_loss
    Fix: `pref_loss: sigmoid`, or orpo and simpo, which LLaMA-Factory computes itself.
    """
    if run.task.stage == "dpo" and run.args.get("pref_loss") in _TRAINED_AS_SIGMOID:
        found = f"with LLaMA-Factory's trl `pref_loss: {run.args.get('pref_loss')}` trains the sigmoid loss"
        yield "pref_loss", f"{found}; write `pref_loss: sigmoid`, or `pref_loss: simpo`"


@rule("TRA505", ERROR, about=subjects.model, since="transformers 5.0.0")
def reward_model_unsaved(run: RunSettings, model: Model) -> Findings:
    """A reward model with tied embeddings is trained by full or freeze tuning.

    Why: transformers 5 refuses to save tensors that share memory: the run fails at its first save, or after all
    training.
    Source: llamafactory/train/rm/trainer.py:PairwiseTrainer._save, transformers/trainer.py:Trainer._save
    Fix: `finetuning_type: lora`, or a model whose embeddings are not tied.
    """
    trains = run.task.stage == "rm" and run.task.trains and run.task.method in ("full", "freeze")
    if trains and model.arch.tied and run.zero_stage < 3:  # which saves what it gathered, unshared
        found = f"{model.name} ties its embeddings, so its reward model can be saved only as an adapter"
        yield "finetuning_type", f"{found}; set `finetuning_type: lora`"


@rule("TRA506", WARNING)
def smoothing_reversed(run: RunSettings) -> Findings:
    """Label smoothing above one half reverses the preferences.

    Why: it is the share of labels assumed to be wrong.
    Source: trl/trainer/dpo_trainer.py:DPOTrainer.dpo_loss
    Fix: a value below 0.5, such as 0.1.
    """
    sigmoid = run.task.stage == "dpo" and run.args.get("pref_loss") == "sigmoid"
    if sigmoid and run.args.number("dpo_label_smoothing") > 0.5:
        text = "`dpo_label_smoothing` above 0.5 makes the model prefer the rejected answers; write 0.1 or less"
        yield "dpo_label_smoothing", text


@rule("TRA507", ERROR)
def asft_without_reference(run: RunSettings) -> Findings:
    """The ASFT loss is combined with LoRA.

    Why: it needs a reference model, which is not made for LoRA: "NoneType is not callable" at the first step, after the
    data is tokenized and the model loaded on every rank.
    Source: llamafactory/train/sft/workflow.py:run_sft,
    llamafactory/train/sft/trainer.py:CustomSeq2SeqTrainer.compute_loss,
    llamafactory/train/trainer_utils.py:create_ref_model
    Fix: `finetuning_type: full` or freeze, or a `ref_model`.
    """
    if run.task.uses_asft_loss and not run.task.frozen_model_copies:
        found = "the ASFT loss needs a reference model, and with LoRA none is loaded"
        yield "use_asft_loss", f"{found}; set `ref_model`, or set `finetuning_type: full`"


@rule("TRA509", ERROR)
def asft_evaluated(run: RunSettings) -> Findings:
    """A run with the ASFT loss is evaluated.

    Why: its loss comes without the outputs that an evaluation unpacks: "iteration over a 0-d tensor" at the first
    evaluation, hours into the run.
    Source: llamafactory/train/sft/trainer.py:CustomSeq2SeqTrainer.compute_loss
    Fix: `eval_strategy: "no"`.
    """
    if run.task.uses_asft_loss and run.evaluation.runs and not run.evaluation.predict_with_generate:
        unused = [f"`{key}`" for key in ("val_size", "eval_dataset", "eval_steps") if run.args.is_set(key)]
        removal = f", and remove {' and '.join(unused)}" if unused else ""
        yield "use_asft_loss", f'a run with the ASFT loss cannot be evaluated; set `eval_strategy: "no"`{removal}'


@rule("TRA510", ERROR)
def pairs_grouped(run: RunSettings) -> Findings:
    """`train_sampling_strategy` groups samples by length, but the samples are pairs, which have two lengths.

    Why: the sampler looks for `input_ids`, which pairs of a better and a worse answer do not have: "Can only
    automatically infer lengths for datasets whose items are dictionaries with an 'input_ids' key", after the model is
    loaded on every rank.
    Source: transformers/trainer_pt_utils.py:LengthGroupedSampler,
    llamafactory/data/processor/pairwise.py:PairwiseDatasetProcessor.preprocess_dataset
    Fix: remove the key; `stage: kto` and `stage: sft` may have it.
    """
    key = "group_by_length" if run.args.is_set("group_by_length") else "train_sampling_strategy"
    pairs = run.task.stage in ("rm", "dpo") and run.task.trains
    if pairs and run.batch.group_by_length and not run.args.flag("streaming"):
        yield key, f"stage {run.task.stage} cannot group pairs by length; remove `{key}`"
