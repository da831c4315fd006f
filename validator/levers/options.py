"""The options of each lever. A lever is one decision about a run, such as its sharding; an option is the settings to
write for it, and what they cost or gain.

Options that save memory come in the order in which a practitioner tries them, each saving more than the one before.
Options that use more memory come in reverse order, the one that uses most first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from validator.knowledge.devices import Device, Machine
from validator.knowledge.guidance import memory_savers, rate_row, supports_memory_savers
from validator.recipe.yaml_writer import format_scalar
from validator.run import deepspeed
from validator.run.prediction import predict
from validator.run.settings import RunSettings
from validator.run.training_time import usual_time_ratio
from validator.run.variants import ArgumentChanges, ArgumentValue, with_arguments

# Levers that an option may move beside its own, so that two options of different functions exclude each other.
SHARDING, MICRO_BATCH, LENGTH, WEIGHTS, TRAINED = "sharding", "micro batch", "length", "weights", "trained parameters"


class Option(NamedTuple):
    """Settings to write, and a note on what they cost or gain. `moves`: the levers that the settings change. Two
    options that move the same lever cannot be combined."""

    set: ArgumentChanges
    note: str
    moves: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return the settings as text for a message, each in backticks."""
        return ", ".join(f"`{line}`" for line in setting_lines(self.set))


def setting_lines(settings: ArgumentChanges) -> list[str]:
    """Return each setting as a line of YAML. The value null stands for a key that is removed from the recipe."""
    return [f"{key}: {format_scalar(value)}" for key, value in settings.items()]


def together(settings: ArgumentChanges) -> str:
    """Return settings that only work together as text for a message: `a` with `b`, `c` and `d`."""
    lines = [f"`{line}`" for line in setting_lines(settings)]
    others = " and ".join(filter(None, (", ".join(lines[1:-1]), *lines[1:][-1:])))
    return " with ".join(filter(None, (*lines[:1], others)))


# Yields options of one lever for a run.
Options = Callable[[RunSettings], Iterator[Option]]


# Micro batch: the effective batch stays.

# More samples at once than this no longer fill a device better; nor do more tokens than those of as many samples of the
# length that `plan` usually takes.
MAX_MICRO_BATCH = 8
_MAX_BATCH_TOKENS = MAX_MICRO_BATCH * 2048
# A device is hardly given more samples at once than this, so larger micro batches are not tried when one is halved.
_MAX_HALVED_BATCH = 64


def smaller_micro_batch(run: RunSettings) -> Iterator[Option]:
    """Yield smaller micro batches, halved step by step, with more gradient accumulation so that the effective batch
    stays the same."""
    micro, accumulation = run.batch.micro_batch, run.batch.accumulation
    while micro > 1:
        by = 2 if micro % 2 == 0 else micro
        micro, accumulation = micro // by, accumulation * by
        if micro <= _MAX_HALVED_BATCH:
            yield _batch_option(micro, accumulation, "same effective batch in smaller steps")


def larger_micro_batch(run: RunSettings) -> Iterator[Option]:
    """Yield larger micro batches, the largest first, with less gradient accumulation so that the effective batch stays
    the same."""
    each = run.batch.kept_tokens * (2 if run.task.uses_preference_pairs else 1)
    for by in (8, 4, 2):
        micro = run.batch.micro_batch * by
        if run.batch.accumulation % by == 0 and micro <= MAX_MICRO_BATCH and micro * each <= _MAX_BATCH_TOKENS:
            yield _batch_option(micro, run.batch.accumulation // by, "same effective batch in fewer, fuller passes")


def _batch_option(micro: int, accumulation: int, note: str) -> Option:
    settings = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
    return Option(settings, note, frozenset({MICRO_BATCH}))


def smaller_evaluation_batch(run: RunSettings) -> Iterator[Option]:
    """Yield evaluation of one sample at a time. An evaluation holds the logits of all samples of its batch."""
    if run.evaluation.runs and run.args.number("per_device_eval_batch_size") > 1:
        yield Option({"per_device_eval_batch_size": 1}, "evaluates one sample at a time, with the same result")


# Sharding and offload.


class ShardingFile(NamedTuple):
    """A DeepSpeed file of the catalogue. `name`: None stands for no DeepSpeed. `speed`: the speed class of
    plan/search.py, by the work that sharding and offload add to a step. `cost`: what a run gives up with this file."""

    name: str | None
    speed: str
    cost: str = ""

    @property
    def offloads(self) -> bool:
        """True if the file keeps states in host memory."""
        return self.name is not None and "offload" in self.name


# From the least sharding to the most. Of page-locked and unlocked host memory the faster comes first.
SHARDING_FILES = (
    ShardingFile(None, "fast"),
    ShardingFile("ds_z2.json", "fast", "shards optimizer state and gradients"),
    ShardingFile("ds_z3.json", "medium", "shards the weights too; more communication"),
    ShardingFile("ds_z2_offload.json", "slow", "optimizer state in host memory; slower steps"),
    ShardingFile("ds_z2_offload_nopin.json", "slow", "optimizer state in unlocked host memory; slower still"),
    ShardingFile("ds_z3_offload.json", "slow", "weights sharded, optimizer state in host memory; slower steps"),
    ShardingFile("ds_z3_offload_nopin.json", "slow",
                 "weights sharded, optimizer state in unlocked host memory; slower still"),
    ShardingFile("ds_z3_offload_all.json", "slowest", "weights and optimizer state in host memory; very slow steps"),
    ShardingFile("ds_z3_offload_all_nopin.json", "slowest",
                 "the same in unlocked host memory, of which it needs least; the slowest"),
)  # fmt: skip


def sharding_files(machine: Machine | None) -> list[ShardingFile]:
    """Return the DeepSpeed files that can gain something on the machine. On one device nothing can be sharded, but
    ZeRO-2's launch through torchrun makes LLaMA-Factory set PyTorch's expandable segments, which only CUDA reads
    (launcher.py). Offload gains nothing if device and host share one memory."""
    several = machine is not None and machine.world > 1
    left_out = [] if several else ["ds_z3.json"]
    if not several and not (machine and machine.device.vendor == "nvidia"):
        left_out.append("ds_z2.json")
    shared = machine is not None and machine.device.shared_memory
    return [each for each in SHARDING_FILES if each.name not in left_out and not (each.offloads and shared)]


def zero2(run: RunSettings) -> Iterator[Option]:
    """Yield ZeRO-2 if the run shards less than ZeRO-2 does, or if it offloads."""
    if (run.zero_stage < 2 or _uses_offload(run)) and not run.fsdp:
        single_device_note = "shards nothing on one device, but torchrun turns on PyTorch's expandable segments"
        yield from _files_of_speed(run, "fast", "" if run.batch.world_size > 1 else single_device_note)


def zero3(run: RunSettings) -> Iterator[Option]:
    """Yield ZeRO-3 if the run shards less than ZeRO-3 does, or if it offloads."""
    if run.zero_stage < 3 or _uses_offload(run):
        yield from _files_of_speed(run, "medium")


def optimizer_offloaded(run: RunSettings) -> Iterator[Option]:
    """Yield DeepSpeed files that keep the optimizer states in host memory. ZeRO-2 is left out if it would keep the
    gradients of many micro batches in host memory. On one device ZeRO-3 comes only in ZeRO-2's place."""
    keeps_few_gradients = run.batch.accumulation <= deepspeed.MICRO_BATCHES_KEPT_OFFLOADED
    sharded = run.batch.world_size > 1 or not keeps_few_gradients
    for option in _files_of_speed(run, "slow"):
        if keeps_few_gradients if "ds_z2" in str(option.set["deepspeed"]) else sharded:
            yield option


def everything_offloaded(run: RunSettings) -> Iterator[Option]:
    """Yield DeepSpeed files that keep weights and optimizer states in host memory."""
    yield from _files_of_speed(run, "slowest")


def _files_of_speed(run: RunSettings, speed: str, note: str = "") -> Iterator[Option]:
    """Yield the DeepSpeed files of a speed class as options. `speed` is the class, by the work that sharding and
    offload add to a step. An offloading file that the run uses already is left out. `note` replaces the file's own note
    on its cost, unless it is empty."""
    current_path = str(run.deepspeed.path) if run.deepspeed else ""
    for file in sharding_files(run.machine):
        if file.name and file.speed == speed and not (file.offloads and current_path.endswith(f"/{file.name}")):
            yield _deepspeed_option(run, file.name, note or file.cost)


def _deepspeed_option(run: RunSettings, name: str, note: str) -> Option:
    return Option({**_without_other_engines(run), "deepspeed": f"deepspeed/{name}"}, note, frozenset({SHARDING}))


def less_sharding(run: RunSettings) -> Iterator[Option]:
    """Yield DeepSpeed files that shard less than the run's file, the one that shards least first; each is also combined
    with smaller micro batches. On one device ZeRO-3 shards nothing, but gathers each layer all the same, so it is left
    out. Nothing is yielded for a run under ZeRO-2 or less without offload: stages 1 and 2 keep the weights whole and
    send as much as plain data parallelism (ZeRO, arXiv 1910.02054, section 7)."""
    degree = _sharding_degree(run)
    offloads = degree > _DEGREES.index("ds_z3.json")
    for name in _DEGREES[:degree] if degree > 1 else ():
        if name == "ds_z2_offload.json" and run.batch.accumulation > deepspeed.MICRO_BATCHES_KEPT_OFFLOADED:
            continue
        if run.batch.world_size > 1 or name != "ds_z3.json":
            settings = {"deepspeed": name and f"deepspeed/{name}"}
            file = Option(settings, _sharding_gain(name, offloads), frozenset({SHARDING}))
            yield file
            for batch in smaller_micro_batch(run):
                yield Option({**settings, **batch.set}, f"{file.note}; {batch.note}", file.moves | batch.moves)


# Files from the least sharding to the most, without those for unlocked memory and without offloaded weights.
_DEGREES = tuple(file.name for file in SHARDING_FILES if file.speed != "slowest" and "nopin" not in str(file.name))


def _sharding_degree(run: RunSettings) -> int:
    """Return the index of the run's sharding in `_DEGREES`, a list of DeepSpeed files from the least sharding to the
    most. Return the length of the list if the run keeps the weights in host memory, too."""
    if not run.zero_stage or run.deepspeed is None:
        return 0
    if run.deepspeed.stage == 3 and run.deepspeed.offload("offload_param"):
        return len(_DEGREES)
    return (3 if run.deepspeed.offloads else 1) + int(run.deepspeed.stage == 3)


def _sharding_gain(name: str | None, offloads: bool) -> str:
    if name and "offload" in name:
        return "only the optimizer state in host memory; faster steps"
    return (
        "nothing in host memory; much faster steps" if offloads else "weights whole on every device; less communication"
    )


def _uses_offload(run: RunSettings) -> bool:
    return run.deepspeed is not None and run.deepspeed.offloads


def _without_other_engines(run: RunSettings) -> dict[str, ArgumentValue]:
    """Return settings that turn off what cannot be combined with DeepSpeed: FSDP, layer-wise optimizers and
    `pure_bf16`."""
    gone = _without_optimizer(run) | {key: None for key in ("fsdp", "fsdp_config") if run.args.is_set(key)}
    if run.args.flag("pure_bf16"):
        gone |= {"pure_bf16": False, "bf16": True}
    return gone


def _without_optimizer(run: RunSettings) -> dict[str, ArgumentValue]:
    """Return settings that turn off GaLore, APOLLO and BAdam, which LLaMA-Factory refuses with adapters and, in most
    cases, with DeepSpeed."""
    return {key: False for key in ("use_galore", "use_apollo", "use_badam") if run.args.flag(key)}


# Liger's kernels, recomputation, loader workers.


def can_fuse_loss(device: Device | None, stage: str) -> bool:
    """True if Liger's fused loss, which never holds all logits, can be used: on NVIDIA, AMD and unknown devices, and
    only in stages that do not need the logits (model_utils/liger_kernel.py, require_logits). `device`: None means a
    GPU."""
    return stage in ("sft", "pt") and (device is None or device.vendor in ("nvidia", "amd", "unknown"))


def liger_kernel(run: RunSettings) -> Iterator[Option]:
    """Yield Liger's fused loss and kernels, if LLaMA-Factory has them for the model and the run does not use them
    yet."""
    is_available = run.model is not None and run.model.family.liger and not run.args.flag("enable_liger_kernel")
    if is_available and can_fuse_loss(run.machine and run.machine.device, run.task.stage):
        yield Option({"enable_liger_kernel": True}, "fuses the loss; needs the liger-kernel package")


def recomputation(run: RunSettings) -> Iterator[Option]:
    """Yield activation checkpointing, if the run keeps all activations."""
    if run.activation_checkpointing.mode == "off":
        yield Option({"disable_gradient_checkpointing": False}, "activations computed twice, about a third slower")


def no_recomputation(run: RunSettings) -> Iterator[Option]:
    """Yield settings that turn activation checkpointing off, if it is on."""
    off: dict[str, ArgumentValue] = {"disable_gradient_checkpointing": True}
    if with_arguments(run, off).activation_checkpointing.mode != "off":  # the Trainer's own key turns it on again
        off["gradient_checkpointing"] = False
    if run.activation_checkpointing.mode != "off":
        yield Option(off, "activations computed once: a quarter to a third less time for a step")


# Processes for each device that load pictures beside the step, and the share of the time below which they are worth it.
_USUAL_LOADERS, _WORTHWHILE_RATIO = 8, 0.9


def more_loader_workers(run: RunSettings) -> Iterator[Option]:
    """Yield more loader workers, processes that open, scale and cut images while the training step runs, if they make
    the run clearly faster."""
    work = predict(run).workload
    if work and any(each.tokens for each in work.towers) and work.loader_workers < _USUAL_LOADERS:
        settings = {"dataloader_num_workers": _USUAL_LOADERS}
        ratio = usual_time_ratio(run, with_arguments(run, settings))
        if ratio and ratio < _WORTHWHILE_RATIO:
            yield Option(settings, "pictures are read beside the step")


def fewer_loader_workers(run: RunSettings) -> Iterator[Option]:
    """Yield a single loader worker, because each worker process takes host memory."""
    if run.args.number("dataloader_num_workers") > 1 and run.machine and run.machine.host_ram_gib:
        yield Option({"dataloader_num_workers": 1}, "fewer processes on the host; samples may come slower")


# Length of the samples.

# Samples of fewer tokens than this are hardly worth training on.
_MIN_LENGTH = 512


def half_as_long_samples(run: RunSettings) -> Iterator[Option]:
    """Yield half of the run's `cutoff_len`."""
    yield from _shorter_samples(run, 2)


def much_shorter_samples(run: RunSettings) -> Iterator[Option]:
    """Yield a quarter and an eighth of the run's `cutoff_len`."""
    yield from _shorter_samples(run, 4, 8)


def _shorter_samples(run: RunSettings, *parts: int) -> Iterator[Option]:
    length = int(run.args.number("cutoff_len"))
    for part in parts:
        if length >= part * _MIN_LENGTH:
            yield Option({"cutoff_len": length // part}, "longer samples are cut", frozenset({LENGTH}))


def longer_samples(run: RunSettings) -> Iterator[Option]:
    """Yield larger values of `cutoff_len`, up to the model's maximum number of positions, largest first."""
    max_length = run.model.positions if run.model else None
    lengths = [int(run.args.number("cutoff_len")) << by for by in (3, 2, 1)]
    yield from (
        Option({"cutoff_len": length}, "fewer samples are cut") for length in lengths if length <= (max_length or 0)
    )


# Layers that adapters reach.


def adapters_in_every_layer(run: RunSettings) -> Iterator[Option]:
    """Yield adapters on all linear modules, if checkpointing is on and some layers have no adapter. Such layers keep
    all their activations."""
    if run.task.method == "lora" and predict(run).layers_kept_whole:
        note = "adapters in every layer, so that every layer is recomputed"
        yield Option({"lora_target": _adapted_targets(run)}, note, frozenset({TRAINED}))


def _adapted_targets(run: RunSettings) -> str:
    """Return the value of `lora_target` that reaches most modules of the run's model."""
    return run.model.family.targets if run.model and run.model.refused else "all"


# Bits of the base weights.


def four_bits(run: RunSettings) -> Iterator[Option]:
    """Yield base weights quantized to 4 bits, if the run trains a LoRA adapter on unquantized weights."""
    if run.task.method == "lora" and _can_quantize(run) and not run.args.flag("use_dora"):
        note = "base weights in 4 bit; slower, slightly less accurate; needs the bitsandbytes package"
        yield Option({"quantization_bit": 4}, note, frozenset({WEIGHTS}))


def unquantized_for_zero3(run: RunSettings) -> Iterator[Option]:
    """Yield unquantized base weights for a LoRA run on several devices. ZeRO-3 shards unquantized weights while they
    load, but quantized weights only after loading."""
    if run.task.method == "lora" and run.quantization.is_requested and run.batch.world_size > 1:
        note = "base weights in half precision, which ZeRO-3 spreads while it reads them"
        yield Option({"quantization_bit": None}, note, frozenset({WEIGHTS}))


def unquantized_weights(run: RunSettings) -> Iterator[Option]:
    """Yield unquantized base weights for a LoRA run that quantizes them while loading."""
    if run.task.method == "lora" and run.quantization.works:
        yield Option({"quantization_bit": None}, "base weights in half precision: faster and more accurate")


def _can_quantize(run: RunSettings) -> bool:
    """True if bitsandbytes can quantize the base weights to 4 bits on the device, and they are not quantized yet."""
    bits = run.machine.device.bitsandbytes if run.machine else (4, 8)
    return 4 in bits and not run.quantization.is_quantized


# Method, and optimizers of full fine-tuning.


def takes_memory_savers(device: Device, method: str, stage: str) -> bool:
    """True if a run may train weights in 16 bits, with AdamW or with a memory-saving optimizer (data/savers.yaml): full
    fine-tuning in stage sft or pt on a device that supports it."""
    return supports_memory_savers(device) and method == "full" and stage in ("sft", "pt")


def pure_bf16(run: RunSettings) -> Iterator[Option]:
    """Yield training with weights and AdamW states in 16 bits."""
    if _takes_other_optimizer(run) and not run.precision.trains_in_16_bit:
        note = "weights and AdamW's states in 16 bits; small updates may be lost"
        yield Option(_pure_bf16_settings(run), note, frozenset({SHARDING, TRAINED}))


def memory_saving_optimizers(run: RunSettings) -> Iterator[Option]:
    """Yield the optimizers BAdam, GaLore and APOLLO. BAdam keeps the batch size; layer-wise GaLore and APOLLO cannot
    accumulate gradients, so the batch becomes one sample."""
    if not _takes_other_optimizer(run):
        return
    for name, note in _OPTIMIZER_NOTES.items():
        layerwise = f"{name}_layerwise" in memory_savers()[name].settings
        batch = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1} if layerwise else {}
        moves = {SHARDING, TRAINED, *([MICRO_BATCH] if layerwise else [])}
        yield Option({**_pure_bf16_settings(run), **memory_savers()[name].settings, **batch}, note, frozenset(moves))


_OPTIMIZER_NOTES: Mapping[str, str] = {
    "badam": "one layer trained at a time",
    "galore": "gradients projected to rank 128; an optimizer step for each sample",
    "apollo": "gradients projected to rank 128; an optimizer step for each sample",
}


def _takes_other_optimizer(run: RunSettings) -> bool:
    device = run.machine.device if run.machine else None
    return (
        device is not None
        and not run.requested_optimizers
        and takes_memory_savers(device, run.task.method, run.task.stage)
    )


def _pure_bf16_settings(run: RunSettings) -> dict[str, ArgumentValue]:
    gone: dict[str, ArgumentValue] = {key: None for key in ("deepspeed", "fsdp", "fsdp_config") if run.args.is_set(key)}
    return gone | {"pure_bf16": True} | {key: False for key in ("bf16", "fp16") if run.args.flag(key)}


def adapters(run: RunSettings) -> Iterator[Option]:
    """Yield LoRA in place of full training. If full training needs offload, LoRA without offload comes first."""
    targets = _adapted_targets(run)
    settings = {**_without_optimizer(run), "finetuning_type": "lora", "lora_target": targets, **_adapter_rate(run)}
    note = "trains adapters instead of all weights, at about ten times the learning rate"
    if _uses_offload(run):
        file = "ds_z3.json" if run.zero_stage == 3 else "ds_z2.json"
        kept = _deepspeed_option(run, file, "").set if run.batch.world_size > 1 else {"deepspeed": None}
        faster = f"{note}; nothing offloaded: much faster steps"
        yield Option({**settings, **kept}, faster, frozenset({TRAINED, SHARDING}))
    yield Option(settings, note, frozenset({TRAINED}))
    if _can_quantize(run):
        yield Option({**settings, "quantization_bit": 4}, f"{note}; base weights in 4 bit", frozenset({TRAINED}))


def _adapter_rate(run: RunSettings) -> dict[str, ArgumentValue]:
    """Return the learning rate that `plan` writes for LoRA, if the run's own lies outside of the range that published
    LoRA runs used; a rate of full fine-tuning is too low for adapters."""
    row = rate_row(run.task.stage, "lora", run.model.billions if run.model else None, None)
    if row is None:
        return {}
    rates = row["learning_rate"]
    rate = run.args.number("learning_rate")
    usual = (rates["low"] or 0) <= rate <= (rates["high"] or rate)
    return {} if usual else {"learning_rate": rates["default"]}
