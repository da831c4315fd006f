"""The groups of `RunSettings` that follow from the recipe's keys alone: stage and method, evaluation, batch, precision
and activation checkpointing. One function makes each group.

Sources are the releases of data/seen.yaml unless a line says otherwise. Where the source code leaves a question open,
the real parser and trainers were run (tests/run/test_settings.py holds their answers)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from validator.knowledge import tables
from validator.knowledge.devices import Machine
from validator.physics.workload import Checkpointing, Precision

from .fsdp import AccelerateFile, Fsdp
from .recipe_arguments import Arguments, HeaderLengths

_DATA_KEYS = ("dataset", "eval_dataset")
# What `val_size` must exceed to hold anything back (hparams/data_args.py).
_LEAST_VAL_SIZE = 1e-6


class Task(NamedTuple):
    """Stage and method of a run, and what follows from them. `read_task` gives LLaMA-Factory's reason for each
    field."""

    stage: str
    method: str
    uses_adapter: bool
    trains: bool
    has_work: bool
    is_inference_only: bool
    is_for_other_command: bool
    targets_all_linear: bool
    uses_preference_pairs: bool
    uses_asft_loss: bool
    needs_reference_logprobs: bool
    frozen_model_copies: int


class Evaluation(NamedTuple):
    """Evaluation of a run. `strategy`: no, steps or epoch. `best_checkpoint_metric`: the metric, without `eval_`, by
    which transformers compares checkpoints; None if transformers compares no checkpoints."""

    strategy: str
    while_training: bool
    runs: bool
    predicts: bool
    predict_with_generate: bool
    generates_text: bool
    splits_validation_set: bool
    drives_learning_rate: bool
    best_checkpoint_metric: str | None


def read_evaluation(args: Arguments) -> Evaluation:
    """Return when and how a run is evaluated.

    An evaluation strategy turns `do_eval` on (transformers, training_args.py), which evaluates once more at the end
    (train/*/workflow.py). Only stage sft generates text (train/sft/trainer.py, prediction_step). `val_size` splits off
    a part of the training data for evaluation (hparams/data_args.py). Checkpoints are compared if a metric is named, if
    the best checkpoint is loaded at the end, or if the learning rate follows the evaluation (transformers,
    training_args.py)."""
    strategy = str(args.get("eval_strategy"))
    while_training = strategy in ("steps", "epoch")
    runs, predicts = args.flag("do_eval") or while_training, args.flag("do_predict")
    predict_with_generate = args.get("stage") == "sft" and args.flag("predict_with_generate")
    drives_learning_rate = args.get("lr_scheduler_type") in ("reduce_lr_on_plateau", "greedy")
    if args.is_set("metric_for_best_model"):
        best_metric: str | None = str(args.get("metric_for_best_model")).removeprefix("eval_")
    else:
        best_metric = "loss" if args.flag("load_best_model_at_end") or drives_learning_rate else None
    return Evaluation(
        strategy=strategy,
        while_training=while_training,
        runs=runs,
        predicts=predicts,
        predict_with_generate=predict_with_generate,
        generates_text=predict_with_generate and (runs or predicts),
        splits_validation_set=args.number("val_size") > _LEAST_VAL_SIZE,
        drives_learning_rate=drives_learning_rate,
        best_checkpoint_metric=best_metric,
    )


def _is_for_other_command(args: Arguments) -> bool:
    """True if a recipe without `do_train` is not meant for `train`: it sets a key that only chat or export reads, or a
    template, and neither data nor any key of the training arguments, all of which chat and export refuse
    (hparams/parser.py, _parse_infer_args)."""
    entries = tables.json_table("arguments")["arguments"]
    if any(entries.get(key, {}).get("command") for key in args.values):
        return True
    return args.is_set("template") and not any(
        key in _DATA_KEYS or entries.get(key, {}).get("group") == "training" for key in args.values
    )


def read_task(args: Arguments, evaluation: Evaluation) -> Task:
    """Return the stage and method of a run and what follows from them. The field `trains` is the value of `do_train`,
    which is false by default (train/*/workflow.py). The field `has_work` is True if the run trains, evaluates or
    predicts; stage ppo always trains (train/ppo/workflow.py)."""
    stage, method = str(args.get("stage")), str(args.get("finetuning_type"))
    trains = args.flag("do_train")
    has_work = trains or evaluation.runs or evaluation.predicts or stage == "ppo"
    # Meant to train nothing: to evaluate, to predict, or, of the other commands, to chat or to export.
    elsewhere = not has_work and _is_for_other_command(args)
    otherwise = "do_train" in args.values or args.flag("do_eval") or evaluation.predicts
    # The ASFT loss compares with a reference (train/sft/workflow.py).
    asft = stage == "sft" and args.flag("use_asft_loss")
    # A reference's probabilities are computed beside the policy's in kto, ppo, dpo but for its two losses without one
    # (hparams/finetuning_args.py, use_ref_model), and with the ASFT loss.
    preference = stage == "dpo" and args.get("pref_loss") not in ("orpo", "simpo")
    reference = stage in ("kto", "ppo") or preference or asft
    # LoRA's reference is the model without its adapter unless another is named; PPO's rewards come from one more frozen
    # model unless an adapter or a server gives them (train/trainer_utils.py).
    rewards = stage == "ppo" and args.get("reward_model_type") == "full"
    copies = int(reference and (method != "lora" or args.is_set("ref_model"))) + int(rewards)
    return Task(
        stage=stage,
        method=method,
        uses_adapter=method in ("lora", "oft"),  # beside frozen weights (model/adapter.py, init_adapter)
        trains=trains,
        has_work=has_work,
        is_inference_only=not trains and (otherwise or elsewhere),
        is_for_other_command=elsewhere,
        targets_all_linear=args.words("lora_target") in ((), ("all",)),  # alone, it means all (model/adapter.py)
        uses_preference_pairs=stage in ("rm", "dpo"),  # both answers in one batch (data/collator.py)
        uses_asft_loss=asft,
        needs_reference_logprobs=reference,
        frozen_model_copies=copies,
    )


# Hardly a set of data has no sample of so many tokens; some have none of 1,024 (350 questions with answers, of a public
# run on 6 GB). Beyond it, whether samples reach `cutoff_len` is not known.
ORDINARY_TOKENS = 512

ComputeDtype = Literal["bf16", "fp16"]


class BatchSettings(NamedTuple):
    """Sizes of the batches that a run makes of its samples. `micro_batch`: samples per device and forward pass.
    `accumulation`: forward passes whose gradients are added up for one optimizer step. `world_size`: processes of the
    run; 1 if no machine is named.

    `kept_tokens`: length to which a sample or a packed sequence is cut. `max_tokens`: the most tokens that the longest
    sequence may have. `certain_tokens`: tokens that the longest sequence has at least. `neat_packing`: packed samples
    do not attend to each other. `dataloader_workers`: processes that load batches for each device. `ppo_buffer`:
    batches of one PPO step; 1 in other stages."""

    micro_batch: int
    accumulation: int
    world_size: int
    packing: bool
    neat_packing: bool
    group_by_length: bool
    kept_tokens: int
    max_tokens: int
    certain_tokens: int
    dataloader_workers: int
    ppo_buffer: int

    @property
    def effective_batch(self) -> int:
        """Samples of one optimizer step: micro batch x accumulation x devices."""
        return self.micro_batch * self.accumulation * self.world_size

    @property
    def samples_per_step(self) -> int:
        """Samples between two counts of the step: an effective batch, or several in PPO (train/ppo/trainer.py)."""
        return self.effective_batch * self.ppo_buffer

    def steps_per_epoch(self, samples: int) -> int:
        """Return the steps of one epoch of `samples` samples. The last step may have fewer samples (transformers,
        trainer.py)."""
        return -(-samples // self.samples_per_step)


class PrecisionSettings(NamedTuple):
    """Number formats of a run. `compute_dtype`: the 16-bit format of matmuls; None if they are computed in 32 bits.
    `autocast`: matmuls are computed in `compute_dtype` even if their operands have another format. `trains_in_16_bit`:
    trained weights stay in 16 bits. `mode`: "fp32" for 32-bit weights and "pure" for 16-bit weights without mixed
    precision; "amp" for mixed precision by autocast, "engine" for mixed precision by DeepSpeed."""

    compute_dtype: ComputeDtype | None
    autocast: bool
    trains_in_16_bit: bool
    mode: Precision


class ActivationCheckpointing(NamedTuple):
    """Activation checkpointing of a run. `llamafactory_mode`: what LLaMA-Factory turns on. `mode`: the same, or FSDP's
    own checkpointing if only FSDP turns it on. `reentrant`: torch's reentrant variant, which computes whole layers
    again."""

    llamafactory_mode: Checkpointing
    mode: Checkpointing
    reentrant: bool


def padded_to_eight(tokens: float) -> int:
    """Return the length to which a batch is padded: `tokens`, the length of its longest sample, rounded up to a
    multiple of 8 (data/collator.py). `tokens` may be a mean and need not be an integer."""
    return math.ceil(max(tokens, 1) / 8) * 8


def read_batch(args: Arguments, lengths: HeaderLengths, machine: Machine | None) -> BatchSettings:
    """Return the batch sizes of a run. `lengths`: the sample lengths that the recipe's header block declares.

    Only two stages pack: pt unless `packing` is false, sft if either switch (`packing`, `neat_packing`) is on
    (hparams/data_args.py, parser.py; data/loader.py, _get_dataset_processor). If either switch is on, samples are cut
    to one token less than `cutoff_len`, also in stages that do not pack (hparams/data_args.py). The tensors still have
    `cutoff_len` tokens, because batches are padded. Samples are grouped by length with `group_by_length`, which
    transformers 5.2 and later call `train_sampling_strategy` (trainer.py, _get_train_sampler)."""
    stage, neat = args.get("stage"), args.flag("neat_packing")
    if stage == "pt":
        packing = args.flag("packing") if args.is_set("packing") else True
    else:
        packing = stage == "sft" and (args.flag("packing") or neat)
    cutoff_len = max(int(args.number("cutoff_len")), 1)
    longest = cutoff_len if lengths.longest is None or packing else min(cutoff_len, padded_to_eight(lengths.longest))
    grouped = args.flag("group_by_length") or args.get("train_sampling_strategy") == "group_by_length"
    return BatchSettings(
        micro_batch=max(int(args.number("per_device_train_batch_size")), 1),
        accumulation=max(int(args.number("gradient_accumulation_steps")), 1),
        world_size=machine.world if machine else 1,
        packing=packing,
        neat_packing=neat,
        group_by_length=grouped and not args.flag("disable_shuffling"),
        kept_tokens=int(args.number("cutoff_len")) - int(args.flag("packing") or neat),
        max_tokens=longest,
        certain_tokens=longest if packing or lengths.longest else min(longest, lengths.typical or ORDINARY_TOKENS),
        dataloader_workers=int(args.number("dataloader_num_workers")),
        ppo_buffer=max(int(args.number("ppo_buffer_size")), 1) if stage == "ppo" else 1,
    )


def read_precision(
    args: Arguments, uses_deepspeed: bool, fsdp: Fsdp | None, accelerate: AccelerateFile | None, on_cpu: bool
) -> PrecisionSettings:
    """Return the number formats of a run.

    The recipe's format wins over that of the accelerate file. `fp8` alone changes nothing, because the Trainer hands
    accelerate the precision before LLaMA-Factory names fp8 (train/fp8_utils.py; seen in a real run:
    "fp8_enabled=False"). The exception is the Transformer Engine backend, whose patch forces fp8, with bf16 around it.
    On a CPU fp16 does not autocast. Trained weights stay in 16 bits under the conditions of model/adapter.py,
    init_adapter. With mixed precision FSDP raises trained weights to 32 bits in any case (accelerate, accelerator.py,
    prepare_model)."""
    engine_fp8 = args.flag("fp8") and args.get("fp8_backend") == "te" and args.get("stage") in ("pt", "sft")
    dtype: ComputeDtype | None = accelerate.half if accelerate else None
    if args.flag("bf16") or engine_fp8:
        dtype = "bf16"
    elif args.flag("fp16"):
        dtype = "fp16"
    pure = args.flag("pure_bf16") or args.flag("use_badam")
    mode: Precision = ("engine" if uses_deepspeed else "amp") if dtype else "fp32"
    return PrecisionSettings(
        compute_dtype=dtype,
        autocast=dtype == "bf16" or (dtype == "fp16" and not on_cpu),
        trains_in_16_bit=pure,
        mode="pure" if pure and not (fsdp and dtype) else mode,
    )


def read_activation_checkpointing(args: Arguments, fsdp: Fsdp | None) -> ActivationCheckpointing:
    """Return which activations are recomputed in the backward pass.

    Checkpointing of whole layers is on by default; `use_unsloth_gc` selects unsloth's variant, which offloads.
    `disable_gradient_checkpointing` leaves the decision to the Trainer, which checkpoints layers if
    `gradient_checkpointing` is true (model_utils/checkpointing.py). FSDP2 turns the reentrant variant off
    (model_utils/checkpointing.py, prepare_model_for_training)."""
    mode: Checkpointing = "offloaded" if args.flag("use_unsloth_gc") else "layer"
    if args.flag("disable_gradient_checkpointing"):
        mode = "layer" if args.flag("gradient_checkpointing") else "off"
    return ActivationCheckpointing(
        llamafactory_mode=mode,
        mode="layer" if mode == "off" and fsdp and fsdp.recomputes else mode,
        reentrant=args.flag("use_reentrant_gc") and not (fsdp and fsdp.version == 2),
    )
