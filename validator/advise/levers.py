"""What saves memory, in the order in which a practitioner tries it.

A lever is a function that yields options: settings, and what they bring or cost. Each option saves more than the
one before it. Two options that decide the same thing exclude each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from validator.knowledge.guidance import memory_savers, supports_memory_savers
from validator.run import deepspeed
from validator.run.settings import RunSettings
from validator.run.variants import ArgumentChanges, ArgumentValue

ENGINE, WEIGHTS, LENGTH, METHOD, BATCH = "engine", "weights", "length", "method", "batch"


class Option(NamedTuple):
    """Settings to write, and what they bring or cost. Two options that decide the same thing exclude each other."""

    set: ArgumentChanges
    note: str
    decides: frozenset[str] = frozenset()


# Yields the options of one lever, each of which saves more memory than the one before it.
Lever = Callable[[RunSettings], Iterator[Option]]


def smaller_micro_batch(run: RunSettings) -> Iterator[Option]:
    """Yield halved micro batches, each with more accumulation, so that the effective batch stays."""
    micro, accumulation = run.batch.micro_batch, run.batch.accumulation
    while micro > 1:
        by = 2 if micro % 2 == 0 else micro
        micro, accumulation = micro // by, accumulation * by
        if micro <= _MAX_MICRO_BATCH:
            settings = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
            yield Option(settings, "same effective batch in smaller steps", frozenset({BATCH}))


def _zero2(run: RunSettings) -> Iterator[Option]:
    """Yield ZeRO-2. On one device it shards nothing, but its launch through torchrun makes LLaMA-Factory set PyTorch's
    expandable segments, which only CUDA reads (launcher.py)."""
    if (run.zero_stage < 2 or _uses_offload(run)) and not run.fsdp:
        if run.batch.world_size > 1:
            yield _deepspeed_option(run, "ds_z2.json", "shards optimizer state and gradients")
        elif run.machine and run.machine.device.vendor == "nvidia":
            note = "shards nothing on one device, but torchrun turns on PyTorch's expandable segments"
            yield _deepspeed_option(run, "ds_z2.json", note)


def _liger_kernel(run: RunSettings) -> Iterator[Option]:
    """Yield Liger. LLaMA-Factory uses its fused loss, which never holds all logits, in sft and pt only
    (model_utils/liger_kernel.py, require_logits)."""
    there = run.model is not None and run.model.family.liger
    ascend = run.machine is not None and run.machine.device.vendor == "ascend"
    if there and run.task.stage in ("sft", "pt") and not run.args.flag("enable_liger_kernel") and not ascend:
        yield Option({"enable_liger_kernel": True}, "fuses the loss; needs the liger-kernel package")


def _recomputation(run: RunSettings) -> Iterator[Option]:
    if run.activation_checkpointing.mode == "off":
        yield Option({"disable_gradient_checkpointing": False}, "activations computed twice, about a third slower")


def _fewer_loader_workers(run: RunSettings) -> Iterator[Option]:
    if run.args.number("dataloader_num_workers") > 1 and run.machine and run.machine.host_ram_gib:
        yield Option({"dataloader_num_workers": 1}, "fewer processes on the host; samples may come slower")


def _half_as_long_samples(run: RunSettings) -> Iterator[Option]:
    if run.args.number("cutoff_len") >= 2 * _MIN_LENGTH:
        yield Option(
            {"cutoff_len": int(run.args.number("cutoff_len")) // 2}, "longer samples are cut", frozenset({LENGTH})
        )


def _much_shorter_samples(run: RunSettings) -> Iterator[Option]:
    for part in (4, 8):
        if run.args.number("cutoff_len") >= part * _MIN_LENGTH:
            yield Option(
                {"cutoff_len": int(run.args.number("cutoff_len")) // part},
                "longer samples are cut",
                frozenset({LENGTH}),
            )


def _four_bits(run: RunSettings) -> Iterator[Option]:
    if (
        run.task.method == "lora"
        and not run.quantization.is_quantized
        and 4 in _bnb_bits(run)
        and not run.args.flag("use_dora")
    ):
        note = "base weights in 4 bit; slower, slightly less accurate; needs the bitsandbytes package"
        yield Option({"quantization_bit": 4}, note, frozenset({WEIGHTS}))


def _unquantized(run: RunSettings) -> Iterator[Option]:
    """Yield unquantized weights: ZeRO-3 shards them while it reads them, but quantized weights only afterwards."""
    if run.task.method == "lora" and run.quantization.asked and run.batch.world_size > 1:
        note = "base weights in half precision, which ZeRO-3 spreads while it reads them"
        yield Option({"quantization_bit": None}, note, frozenset({WEIGHTS}))


def _zero3(run: RunSettings) -> Iterator[Option]:
    if run.batch.world_size > 1 and (run.zero_stage < 3 or _uses_offload(run)):
        yield _deepspeed_option(run, "ds_z3.json", "shards the weights too; more communication")


def _optimizer_offloaded(run: RunSettings) -> Iterator[Option]:
    files = {
        "ds_z2_offload.json": "optimizer state in host memory; slower steps",
        "ds_z2_offload_nopin.json": "optimizer state in unlocked host memory; slower still",
    }
    sharded = {
        "ds_z3_offload.json": "weights sharded, optimizer state in host memory; slower steps",
        "ds_z3_offload_nopin.json": "weights sharded, optimizer state in unlocked host memory; slower still",
    }
    keeps = run.batch.accumulation <= deepspeed.MICRO_BATCHES_KEPT_OFFLOADED
    yield from _deepspeed_options(
        run, (files if keeps else {}) | (sharded if run.batch.world_size > 1 or not keeps else {})
    )


def _everything_offloaded(run: RunSettings) -> Iterator[Option]:
    yield from _deepspeed_options(run, {
        "ds_z3_offload_all.json": "weights and optimizer state in host memory; very slow steps",
        "ds_z3_offload_all_nopin.json": "the same in unlocked host memory, of which it needs least; the slowest",
    })  # fmt: skip


def _pure_bf16(run: RunSettings) -> Iterator[Option]:
    if _takes_memory_saving_optimizers(run) and not run.precision.trains_in_16_bit:
        note = "weights and AdamW's states in 16 bits; small updates may be lost"
        yield Option(_pure_bf16_settings(run), note, frozenset({ENGINE, METHOD}))


def _memory_saving_optimizers(run: RunSettings) -> Iterator[Option]:
    """Yield the memory-saving optimizers of `plan`. BAdam keeps the batch; layer-wise GaLore and APOLLO cannot
    accumulate gradients."""
    if not _takes_memory_saving_optimizers(run):
        return
    for name, note in _OPTIMIZER_NOTES.items():
        layerwise = f"{name}_layerwise" in memory_savers()[name].settings
        batch = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1} if layerwise else {}
        decides = {ENGINE, METHOD, *([BATCH] if layerwise else [])}
        yield Option({**_pure_bf16_settings(run), **memory_savers()[name].settings, **batch}, note, frozenset(decides))


_OPTIMIZER_NOTES = {
    "badam": "one layer trained at a time",
    "galore": "gradients projected to rank 128; an optimizer step for each sample",
    "apollo": "gradients projected to rank 128; an optimizer step for each sample",
}


def _takes_memory_saving_optimizers(run: RunSettings) -> bool:
    device = run.machine.device if run.machine else None
    return (
        device is not None
        and supports_memory_savers(device)
        and run.task.method == "full"
        and not run.requested_optimizers
        and run.task.stage in ("sft", "pt")
    )


def _pure_bf16_settings(run: RunSettings) -> dict[str, ArgumentValue]:
    gone: dict[str, ArgumentValue] = {key: None for key in ("deepspeed", "fsdp", "fsdp_config") if run.args.is_set(key)}
    return gone | {"pure_bf16": True} | {key: False for key in ("bf16", "fp16") if run.args.flag(key)}


def _adapters(run: RunSettings) -> Iterator[Option]:
    """Yield LoRA instead of full training, first without the offload that full training needed."""
    targets = run.model.family.targets if run.model and run.model.refused else "all"
    settings = {**_without_optimizer(run), "finetuning_type": "lora", "lora_target": targets}
    note = "trains adapters instead of all weights, at about ten times the learning rate"
    if _uses_offload(run):
        file = "ds_z3.json" if run.zero_stage == 3 else "ds_z2.json"
        kept = _deepspeed_option(run, file, "").set if run.batch.world_size > 1 else {"deepspeed": None}
        faster = f"{note}; nothing offloaded: much faster steps"
        yield Option({**settings, **kept}, faster, frozenset({METHOD, ENGINE}))
    yield Option(settings, note, frozenset({METHOD}))
    if 4 in _bnb_bits(run) and not run.quantization.is_quantized:
        yield Option({**settings, "quantization_bit": 4}, f"{note}; base weights in 4 bit", frozenset({METHOD}))


# Levers that keep the training as it is. Each lever costs more than all before it together, here and below.
SAME_TRAINING: tuple[Lever, ...] = (smaller_micro_batch, _zero2, _liger_kernel, _recomputation, _fewer_loader_workers)
# Levers that change the samples or the numbers, or make the run slow.
_FOR_ADAPTERS: tuple[Lever, ...] = (
    _half_as_long_samples,
    _four_bits,
    _unquantized,
    _zero3,
    _everything_offloaded,
    _much_shorter_samples,
)
_FOR_WEIGHTS: tuple[Lever, ...] = (
    _zero3,
    _half_as_long_samples,
    _optimizer_offloaded,
    _everything_offloaded,
    _adapters,
    _much_shorter_samples,
)
_FOR_WEIGHTS_ON_ONE_DEVICE: tuple[Lever, ...] = (
    _half_as_long_samples,
    _pure_bf16,
    _adapters,
    _memory_saving_optimizers,
    _optimizer_offloaded,
    _everything_offloaded,
    _much_shorter_samples,
)


def levers_changing_training(run: RunSettings) -> tuple[Lever, ...]:
    """Return the levers that change the training, by what the run trains: adapters, or weights of the model itself."""
    if run.task.method not in ("full", "freeze"):
        return _FOR_ADAPTERS
    return _FOR_WEIGHTS if run.batch.world_size > 1 else _FOR_WEIGHTS_ON_ONE_DEVICE


def available_options(run: RunSettings, lever: Lever) -> list[Option]:
    """Return the lever's options for the run. If an accelerate file decides the sharding, the recipe cannot."""
    return [option for option in lever(run) if not (run.accelerate and ENGINE in option.decides)]


def combine(options: Iterable[Option]) -> Option | None:
    """Return all options as one; None if two exclude each other."""
    settings: dict[str, ArgumentValue] = {}
    notes: list[str] = []
    decided: list[str] = []
    for option in options:
        settings |= option.set
        notes += [option.note] if option.note else []
        decided += option.decides
    distinct = frozenset(decided)
    return Option(settings, "; ".join(notes), distinct) if len(distinct) == len(decided) else None


# A device is hardly given more samples at once than this.
_MAX_MICRO_BATCH = 64
# Samples of fewer tokens than this are hardly worth training on.
_MIN_LENGTH = 512


def _bnb_bits(run: RunSettings) -> tuple[int, ...]:
    return run.machine.device.bitsandbytes if run.machine else (4, 8)


def _uses_offload(run: RunSettings) -> bool:
    return run.deepspeed is not None and run.deepspeed.offloads


def _deepspeed_options(run: RunSettings, notes: dict[str, str]) -> Iterator[Option]:
    """Yield the ZeRO files except the recipe's own. Offload gains nothing if device and host share their memory."""
    if run.machine and run.machine.device.shared_memory:
        notes = {name: note for name, note in notes.items() if "offload" not in name}
    own = str(run.deepspeed.path) if run.deepspeed else ""
    yield from (_deepspeed_option(run, name, note) for name, note in notes.items() if not own.endswith(f"/{name}"))


def _deepspeed_option(run: RunSettings, name: str, note: str) -> Option:
    return Option({**_without_other_engines(run), "deepspeed": f"deepspeed/{name}"}, note, frozenset({ENGINE}))


def _without_optimizer(run: RunSettings) -> dict[str, ArgumentValue]:
    """Return settings that turn off the optimizers that LLaMA-Factory refuses with adapters, and mostly with
    DeepSpeed."""
    return {key: False for key in ("use_galore", "use_apollo", "use_badam") if run.args.flag(key)}


def _without_other_engines(run: RunSettings) -> dict[str, ArgumentValue]:
    """Return settings that remove whatever excludes DeepSpeed: FSDP, layer-wise optimizers and `pure_bf16`."""
    gone = _without_optimizer(run) | {key: None for key in ("fsdp", "fsdp_config") if run.args.is_set(key)}
    if run.args.flag("pure_bf16"):
        gone |= {"pure_bf16": False, "bf16": True}
    return gone
