"""Stage, method, evaluation, batch, precision and activation checkpointing of a run: groups of `RunSettings`, each
made by one function.

Sources are the releases of data/seen.yaml unless a line says otherwise. What reading leaves open was settled by
the real parser and trainers (tests/run/test_settings.py holds what they answered)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from validator.knowledge.devices import Machine
from validator.physics.workload import Checkpointing, Precision

from .fsdp import AccelerateFile, Fsdp
from .recipe_arguments import Arguments, HeaderLengths

# What `val_size` must exceed to hold anything back (hparams/data_args.py).
_LEAST_VAL_SIZE = 1e-6


class Task(NamedTuple):
    """Stage and method, and what follows from them. Each field says LLaMA-Factory's reason at its definition below."""

    stage: str
    method: str
    uses_adapter: bool
    trains: bool
    has_work: bool
    is_inference_only: bool
    targets_all_linear: bool
    uses_preference_pairs: bool
    uses_asft_loss: bool
    needs_reference_logprobs: bool
    frozen_model_copies: int


class Evaluation(NamedTuple):
    """Evaluation of a run. `strategy`: no, steps or epoch. `best_checkpoint_metric`: the metric, without `eval_`, by
    which transformers compares checkpoints; None if it compares none."""

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

    A strategy turns `do_eval` on (transformers, training_args.py), which evaluates once more at the end
    (train/*/workflow.py). Text is written only in stage sft (train/sft/trainer.py, prediction_step). Part of the
    training data is split off by `val_size` (hparams/data_args.py). Checkpoints are compared where a metric is named,
    the best one is loaded, or the learning rate follows the evaluation (transformers, training_args.py)."""
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


def read_task(args: Arguments, evaluation: Evaluation) -> Task:
    """Return the task of a run. `trains` is false by default (train/*/workflow.py); PPO always trains
    (train/ppo/workflow.py)."""
    stage, method = str(args.get("stage")), str(args.get("finetuning_type"))
    trains = args.flag("do_train")
    has_work = trains or evaluation.runs or evaluation.predicts or stage == "ppo"
    # Meant to train nothing: to evaluate, to predict, or, of the other commands, to chat or to export.
    elsewhere = not has_work and (args.is_set("infer_backend") or args.is_set("export_dir"))
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
    """Sizes of the batches that samples are put into. `micro_batch`: samples of one forward pass of one device;
    `accumulation`: passes whose gradients are added up for one optimizer step; `world_size`: processes of the run, 1 if
    no machine is named.

    `kept_tokens`: tokens kept of a sample, or of a packed sequence. `max_tokens`: tokens of the longest sequence.
    `certain_tokens`: tokens that the longest sequence has at least. `neat_packing`: packed samples do not attend to
    each other. `dataloader_workers`: processes that load batches for each device."""

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

    @property
    def effective_batch(self) -> int:
        """Samples of one optimizer step: micro batch x accumulation x devices."""
        return self.micro_batch * self.accumulation * self.world_size

    def steps_per_epoch(self, samples: int) -> int:
        """Return the optimizer steps of a pass over `samples` samples; the last step may be short (transformers,
        trainer.py)."""
        return -(-samples // self.effective_batch)


class PrecisionSettings(NamedTuple):
    """Number formats. `compute_dtype`: the 16-bit format of matrix products, None if they are in 32 bits. `autocast`:
    products are computed in one format whatever their factors have. `trains_in_16_bit`: trained weights stay in 16
    bits. `mode`: how mixed precision is done: not at all in 32 or in 16 bits, by autocast, or by DeepSpeed."""

    compute_dtype: ComputeDtype | None
    autocast: bool
    trains_in_16_bit: bool
    mode: Precision


class ActivationCheckpointing(NamedTuple):
    """Activation checkpointing. `llamafactory_mode`: LLaMA-Factory's own part; `mode`: the result with FSDP's part.
    `reentrant`: torch's variant that computes whole layers again."""

    llamafactory_mode: Checkpointing
    mode: Checkpointing
    reentrant: bool


def padded_to_eight(tokens: float) -> int:
    """Return the tokens of a batch whose longest sample has `tokens` (a mean need not be whole): batches are padded to
    a multiple of 8 (data/collator.py)."""
    return math.ceil(max(tokens, 1) / 8) * 8


def read_batch(args: Arguments, lengths: HeaderLengths, machine: Machine | None) -> BatchSettings:
    """Return how samples become batches; `lengths` are those that the header block declares.

    Only two stages pack: pt unless `packing` is false, sft if either switch is on (hparams/data_args.py, parser.py;
    data/loader.py, _get_dataset_processor). A sample keeps one token less than `cutoff_len` if packing is written, also
    in stages that do not pack (hparams/data_args.py); the tensors stay as long as `cutoff_len`, as batches are padded.
    Batches are grouped by length with `group_by_length`, or under the name that it has since transformers 5.2
    (trainer.py, _get_train_sampler)."""
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
    )


def read_precision(
    args: Arguments, uses_deepspeed: bool, fsdp: Fsdp | None, accelerate: AccelerateFile | None, on_cpu: bool
) -> PrecisionSettings:
    """Return the number formats of a run.

    The recipe's format wins over the accelerate file's. `fp8` alone changes nothing: the Trainer hands accelerate the
    precision before LLaMA-Factory names fp8, but for Transformer Engine, whose patch forces it, with bf16 around
    (train/fp8_utils.py; seen in a real run: "fp8_enabled=False"). On a CPU fp16 does not autocast. Trained weights stay
    in 16 bits as model/adapter.py, init_adapter, says; if precision is mixed, FSDP raises them to 32 bits whatever was
    asked (accelerate, accelerator.py, prepare_model)."""
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
    """Return which activations are recomputed.

    On by default, unsloth's way with `use_unsloth_gc`. `disable_gradient_checkpointing` leaves it to the Trainer, which
    turns on the plain one for `gradient_checkpointing` (model_utils/checkpointing.py). FSDP2 turns re-entrance off
    (model_utils/checkpointing.py, prepare_model_for_training)."""
    mode: Checkpointing = "offloaded" if args.flag("use_unsloth_gc") else "layer"
    if args.flag("disable_gradient_checkpointing"):
        mode = "layer" if args.flag("gradient_checkpointing") else "off"
    return ActivationCheckpointing(
        llamafactory_mode=mode,
        mode="layer" if mode == "off" and fsdp and fsdp.recomputes else mode,
        reentrant=args.flag("use_reentrant_gc") and not (fsdp and fsdp.version == 2),
    )
