"""Batch, precision and activation checkpointing of a run. Sources as in training_task.py."""

from __future__ import annotations

from typing import Literal, NamedTuple

from validator.knowledge.devices import Machine
from validator.physics.workload import Checkpointing, Precision
from validator.run.declared import HeaderLengths
from validator.run.fsdp import AccelerateFile, Fsdp
from validator.run.recipe_arguments import Arguments

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


def padded_to_eight(tokens: int) -> int:
    """Return the tokens of a batch whose longest sample has `tokens`: batches are padded to a multiple of 8
    (data/collator.py)."""
    return -(-tokens // 8) * 8


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
    most = max(int(args.number("cutoff_len")), 1)
    longest = most if lengths.longest is None or packing else min(most, padded_to_eight(lengths.longest))
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
    own: Checkpointing = "offloaded" if args.flag("use_unsloth_gc") else "layer"
    if args.flag("disable_gradient_checkpointing"):
        own = "layer" if args.flag("gradient_checkpointing") else "off"
    return ActivationCheckpointing(
        llamafactory_mode=own,
        mode="layer" if own == "off" and fsdp and fsdp.recomputes else own,
        reentrant=args.flag("use_reentrant_gc") and not (fsdp and fsdp.version == 2),
    )
