"""DEV: what the target device cannot do: number formats, attention and bitsandbytes kernels, optimizers, backends."""

from __future__ import annotations

from collections.abc import Iterator

from validator.knowledge import tables
from validator.knowledge.devices import Device, Machine
from validator.knowledge.node_environment import node_needs
from validator.knowledge.optimizers import optimizer_choice
from validator.knowledge.releases import range_admits
from validator.rules import subjects
from validator.rules.rule import ERROR, NOTE, WARNING, Findings, remove_keys, rename_key, rule
from validator.run.broken_run import overflows_in_fp16
from validator.run.settings import RunSettings

# optimizer -> who makes the devices that the package behind it needs


@rule("DEV005", WARNING, about=subjects.device)
def quantization_on_ascend(run: RunSettings, device: Device) -> Findings:
    """bitsandbytes is used on Ascend.

    Why: LLaMA-Factory does not forbid it, but no released bitsandbytes has kernels for NPUs; its pull request 1695
    would bring them. A build of its branch multi-backend-refactor that fits the installed CANN has them, for 4-bit nf4
    without double quantization alone: fp4 and 8 bits raise NotImplementedError. Runs on 910B are reported to fail in
    LLaMA-Factory issues 6452 (8 bits, at the first step), 9465 and 10125 (a checkpoint in 4 bits), on 910A in 7337 and
    3867; one run went on, with a build of pull request 1695.
    Source: own (reports of bitsandbytes on Ascend; the NPU backend of its branch)
    Fix: LoRA with ZeRO-3 in bf16; or `double_quantization: false` and a try of a few steps first.
    """
    bits, key = _bnb_bits_at_all(run), _bnb_key(run)
    if device.vendor == "ascend" and device.bf16 and bits and not _release_without_kernels(run):
        found = f"{bits}-bit bitsandbytes on {device.id} needs a build from source that fits CANN"
        if bits != 4 or run.args.get("quantization_type") != "nf4":
            found = f"a bitsandbytes built from source for CANN has kernels for {device.id} in 4-bit nf4 alone"
        elif key == "quantization_bit" and run.args.flag("double_quantization"):
            found += ", and `double_quantization: false`"
        yield key, f"{found}; {_WITHOUT_BNB[key]}"


@rule("DEV006", ERROR, about=subjects.device)
def quantization_on_old_ascend(run: RunSettings, device: Device) -> Findings:
    """bitsandbytes is used on Ascend 910A.

    Why: its kernels for Ascend are made for 910B; on 910A quantizing stops with NotImplementedError, after the data is
    tokenized, and LLaMA-Factory will not mend it (issues 7337, 3867).
    Source: own (reports of bitsandbytes on Ascend)
    Fix: LoRA in fp16 with ZeRO-3.
    """
    if device.vendor == "ascend" and not device.bf16 and _bnb_bits_at_all(run):
        key = _bnb_key(run)
        yield key, f"bitsandbytes does not run on {device.id}; {_WITHOUT_BNB[key]}"


@rule("DEV018", ERROR, about=subjects.device)
def bitsandbytes_without_npu(run: RunSettings, device: Device) -> Findings:
    """The header block names a bitsandbytes that has no kernels for NPUs, or that LLaMA-Factory does not find.

    Why: no release of the package index that was looked at has them: older ones stop at 4-bit weights with
    NotImplementedError, newer ones try plain PyTorch, which is reported to fail on 910B (LLaMA-Factory issue 9465).
    bitsandbytes-npu-beta has them, but LLaMA-Factory asks for a package called bitsandbytes: "No package metadata was
    found" when the model is configured, after the data is tokenized on every rank. `doctor`, `train` and
    `check --machine auto` look at what is installed.
    Source: llamafactory/model/model_utils/quantization.py:configure_quantization, own (the wheels of bitsandbytes)
    Fix: remove `quantization_bit`, and shard the weights by ZeRO-3; or a build of bitsandbytes for the NPU.
    """
    if device.vendor == "ascend" and device.bf16 and _bnb_bits_at_all(run) and (named := _release_without_kernels(run)):
        yield "packages", f"{named}; {_WITHOUT_BNB[_bnb_key(run)]}"


_WITHOUT_BNB = {
    "quantization_bit": "remove `quantization_bit`, and shard the weights by ZeRO-3 instead",
    "model_name_or_path": "name the model that is not quantized, and shard its weights by ZeRO-3 instead",
}


def _bnb_bits_at_all(run: RunSettings) -> int:
    """Return the bits of weights that bitsandbytes quantizes while loading or has quantized in the checkpoint; 0 if
    there are none, or if the method trains no adapter, which is refused beside such weights."""
    return run.quantization.bnb_bits if run.task.uses_adapter else 0


def _bnb_key(run: RunSettings) -> str:
    """Return the recipe's key that makes the weights bitsandbytes'."""
    return "model_name_or_path" if run.quantization.checkpoint else "quantization_bit"


def _release_without_kernels(run: RunSettings) -> str:
    """Return, as text for a message, which package of the header block leaves bitsandbytes without kernels for NPUs; an
    empty string if none does, or if that is not known."""
    facts, packages = tables.yaml_table("together")["npu_quantization"], run.declared.packages
    release = packages.get("bitsandbytes")
    if release is None:
        other = next((name for name in facts["other_names"] if name in packages), "")
        return f"LLaMA-Factory asks for bitsandbytes and does not find {other}" if other else ""
    released = release.replace(".", "").isdigit() and range_admits(f"<={facts['released_without']}", release)
    return f"bitsandbytes {release} has no kernels for NPUs" if released else ""


@rule("DEV007", WARNING, about=subjects.device)
def quantization_bits_unsupported(run: RunSettings, device: Device) -> Findings:
    """bitsandbytes does not quantize to this number of bits on this device.

    Why: 8-bit matrix products need compute capability 7.5 (bitsandbytes' requirements); on V100 the first step fails,
    or by version a slow and less exact path is taken (bitsandbytes issues 529, 672).
    Source: own (the requirements of bitsandbytes)
    Fix: `quantization_bit: 4`.
    """
    bits = bnb_bits(run)
    if device.vendor != "ascend" and bits in (4, 8) and bits not in device.bitsandbytes:
        known = next(iter(device.bitsandbytes), None)
        remedy = f"set `quantization_bit: {known}`" if known else "remove `quantization_bit`"
        yield "quantization_bit", f"bitsandbytes cannot quantize to {bits} bits on {device.id}; {remedy}"


def bnb_bits(run: RunSettings) -> int:
    """Return the number of bits to which bitsandbytes quantizes the model while loading; 0 if it does not."""
    quantization = run.quantization
    return (
        quantization.bits
        if run.task.uses_adapter and quantization.quantizes_at_load and quantization.method == "bnb"
        else 0
    )


@rule("DEV010", WARNING, about=subjects.device)
def kernels_for_cuda(run: RunSettings, device: Device) -> Findings:
    """The recipe asks for kernels on Ascend that are written for NVIDIA GPUs.

    Why: unsloth and its gradient checkpointing call CUDA by name, and liger's Triton kernels run there only with
    triton-ascend: the run fails or gains nothing.
    Source: llamafactory/model/model_utils/checkpointing.py:get_unsloth_gradient_checkpointing_func,
    llamafactory/model/model_utils/liger_kernel.py:apply_liger_kernel
    Fix: remove the setting.
    """
    for key in ("use_unsloth", "use_unsloth_gc", "enable_liger_kernel"):
        if device.vendor == "ascend" and run.args.flag(key):
            yield key, f"`{key}` is made for NVIDIA GPUs and may fail on {device.id}; remove `{key}`"


@rule("DEV011", WARNING, about=subjects.device)
def optimizer_without_kernels(run: RunSettings, device: Device) -> Findings:
    """An 8-bit or paged optimizer is used on a device that bitsandbytes has no optimizer for.

    Why: its kernels are CUDA's: on Ascend the trainer or the first step fails, after the model is loaded.
    Source: transformers/trainer_optimizer.py:_get_bitsandbytes_optimizer, own (the requirements of bitsandbytes)
    Fix: `optim: adamw_torch`, or shard the states with ZeRO-2.
    """
    name = str(run.args.get("optim"))
    if device.vendor == "ascend" and is_bnb_optimizer(name):
        found = f"`{name}` needs bitsandbytes' CUDA kernels, and {device.id} has none"
        yield "optim", f"{found}; write `optim: adamw_torch`"


@rule("DEV016", ERROR, about=subjects.device)
def optimizer_of_another_device(run: RunSettings, device: Device) -> Findings:
    """`optim` names an optimizer of other devices.

    Why: its package (torch_npu, torch_xla, apex) is not there, or its kernels are CUDA's, as those of GaLore in 8 bits:
    the run fails when the trainer is built, after the data is tokenized and the model loaded on every rank.
    Source: transformers/trainer_optimizer.py:_get_adamw_torch_npu_fused,
    transformers/trainer_optimizer.py:_get_adamw_torch_xla, transformers/trainer_optimizer.py:_get_adamw_apex_fused,
    llamafactory/train/trainer_utils.py:_create_galore_optimizer
    Fix: `optim: adamw_torch`.
    """
    name = str(run.args.get("optim"))
    galore = run.args.flag("use_galore") and "8bit" in name and device.vendor == "cpu"
    vendors = optimizer_choice(name).vendors
    if run.task.trains and (galore or (vendors is not None and device.vendor not in vendors)):
        what = f"`{name}` for GaLore" if galore else f"`{name}`"
        yield "optim", f"{what} does not run on {device.id}; write `optim: adamw_torch`"


def is_bnb_optimizer(optimizer: str) -> bool:
    """True if `optim` names an optimizer of bitsandbytes."""
    return "8bit" in optimizer or optimizer.startswith("paged_")


_BF16_KEYS = ("bf16", "pure_bf16", "bf16_full_eval")
_AMPERE_CAPABILITY = 8.0
_BACKENDS = ("nccl", "hccl")
_SWITCHES_BY_DEVICE = (*_BF16_KEYS, "fp8", "tf32", "use_unsloth", "use_unsloth_gc", "enable_liger_kernel")


@rule("DEV001", ERROR, about=subjects.device)
def no_bf16(run: RunSettings, device: Device) -> Findings:
    """The device has no bf16.

    Why: Ascend 910A has no bf16 arithmetic, and torch_npu refuses it at parse, on every rank. V100 and T4 have none
    either. There LLaMA-Factory starts, because the torch it needs, 2.4 and later, counts emulation as support
    (`torch.cuda.is_bf16_supported`): every product is then computed in 32 bits, on V100 at 15.7 instead of 125
    TFLOP/s (NVIDIA's data sheet), and attention writes out its whole matrix, as no fused kernel takes bf16 there. A run
    planned for bf16 does not end in its time; this is the one refusal of what LLaMA-Factory would start.
    Source: transformers/training_args.py:TrainingArguments._validate_args,
    transformers/utils/import_utils.py:is_torch_bf16_gpu_available, own (data sheets)
    Fix: `fp16: true` instead of `bf16: true`, or neither for a model whose numbers fp16 cannot hold; on a GPU from
    Ampere on and on Ascend 910B keep bf16.
    """
    how = "" if device.vendor == "ascend" else ", and torch emulates it in 32 bits, many times slower"
    for key in _BF16_KEYS if not device.bf16 and not run.args.flag("use_cpu") else ():
        if run.args.flag(key):
            if overflows_in_fp16(run):
                remedy = f"remove `{key}`, as fp16 cannot hold the numbers of this model"
                yield key, f"{device.id} has no bf16{how}; {remedy}", remove_keys(key, safe=False)
                continue
            instead = "fp16_full_eval" if key == "bf16_full_eval" else "fp16"
            fix = None if key == "pure_bf16" or instead in run.args.values else rename_key(key, instead, safe=False)
            yield key, f"{device.id} has no bf16{how}; write `{instead}: true` in place of `{key}`", fix


@rule("DEV002", ERROR, about=subjects.device)
def bf16_on_cpu(run: RunSettings, device: Device) -> Findings:
    """The settings for bf16 on a CPU are refused.

    Why: refused at parse: transformers asks for `use_cpu: true`, and `pure_bf16` is refused on a CPU in any case.
    Source: transformers/training_args.py:TrainingArguments._validate_args,
    llamafactory/hparams/parser.py:get_train_args
    Fix: `use_cpu: true` beside `bf16: true`; no `pure_bf16`.
    """
    if device.vendor != "cpu":
        return
    if run.args.flag("pure_bf16"):
        yield "pure_bf16", "`pure_bf16` is refused on a CPU; write `bf16: true` with `use_cpu: true`"
    for key in ("bf16", "bf16_full_eval"):
        if run.args.flag(key) and not run.args.flag("use_cpu"):
            yield key, f"`{key}` is refused on a CPU without `use_cpu: true`; add `use_cpu: true`"


@rule("DEV003", WARNING, about=subjects.device)
def no_flash_attention(run: RunSettings, device: Device) -> Findings:
    """The recipe asks for FlashAttention-2 on a device that does not support it.

    Why: flash-attn needs Ampere or later and cannot be used on V100 or T4; without the package LLaMA-Factory only
    warns and goes on with transformers' default. With it, the first step fails.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation, own (data sheets)
    Fix: `flash_attn: auto`. Memory and time are those of the run that goes on.
    """
    if run.args.get("flash_attn") == "fa2" and not run.uses_flash_attention:
        found = f"{device.id} has no FlashAttention-2, so LLaMA-Factory goes on without it, or fails at the first step"
        yield "flash_attn", f"{found} where its package is installed; write `flash_attn: auto`"


@rule("DEV004", WARNING, about=subjects.device)
def no_fp8(run: RunSettings, device: Device) -> Findings:
    """The recipe asks for fp8 training on a device that has no fp8.

    Why: it needs Ada, Hopper or later; elsewhere the first step fails, or, where torchao is missing too, the run goes
    on without fp8 and says so only in the log.
    Source: llamafactory/train/fp8_utils.py:create_fp8_kwargs, own (data sheets)
    Fix: `bf16: true` without `fp8`.
    """
    if run.args.flag("fp8") and not device.fp8:
        yield "fp8", f"{device.id} has no fp8; remove `fp8`"


@rule("DEV008", ERROR, about=subjects.device)
def no_tf32(run: RunSettings, device: Device) -> Findings:
    """The recipe asks for tf32 on a device that has no tf32.

    Why: refused at parse, on every rank: it needs an NVIDIA GPU from Ampere on.
    Source: transformers/training_args.py:TrainingArguments.__post_init__, own (data sheets)
    Fix: remove `tf32`.
    """
    if run.args.flag("tf32") and (device.vendor != "nvidia" or (device.capability or 0) < _AMPERE_CAPABILITY):
        yield "tf32", f"{device.id} has no tf32; remove `tf32`", remove_keys("tf32")


@rule("DEV009", ERROR, about=subjects.device)
def checkpointing_needs_cuda(run: RunSettings, device: Device) -> Findings:
    """The recipe asks for unsloth's gradient checkpointing without CUDA.

    Why: it moves tensors to "cuda" by name: fails at the first step, after the data is tokenized and the model loaded.
    Source: llamafactory/model/model_utils/checkpointing.py:get_unsloth_gradient_checkpointing_func
    Fix: remove `use_unsloth_gc`; LLaMA-Factory's own checkpointing is on anyway.
    """
    if device.vendor == "cpu" and run.task.trains and run.activation_checkpointing.mode == "offloaded":
        text = "`use_unsloth_gc` needs CUDA, which a CPU does not have; remove `use_unsloth_gc`"
        yield "use_unsloth_gc", text, remove_keys("use_unsloth_gc")


@rule("DEV012", WARNING, about=subjects.machine)
def accelerator_unused(run: RunSettings, machine: Machine) -> Findings:
    """The recipe forces the CPU on a machine with accelerators.

    Why: `use_cpu` leaves them idle.
    Source: transformers/training_args.py:TrainingArguments._setup_devices
    Fix: remove `use_cpu`.
    """
    if machine.device.vendor != "cpu" and run.args.flag("use_cpu"):
        yield "use_cpu", f"`use_cpu` leaves {machine.device.id} idle; remove `use_cpu`"


@rule("DEV013", WARNING, about=subjects.device)
def backend_of_another_device(run: RunSettings, device: Device) -> Findings:
    """`ddp_backend` names a communication library of other devices.

    Why: NCCL is NVIDIA's and AMD's, HCCL Ascend's; the processes cannot form a group.
    Source: transformers/training_args.py:TrainingArguments._setup_devices
    Fix: remove `ddp_backend`; the right one is chosen by itself.
    """
    name = str(run.args.get("ddp_backend"))
    if name in _BACKENDS and name != node_needs(device).collectives:
        yield "ddp_backend", f"`ddp_backend: {name}` does not work on {device.id}; remove `ddp_backend`"


@rule("DEV014", ERROR, about=subjects.device)
def sharding_on_cpu(run: RunSettings, device: Device) -> Findings:
    """FSDP is used on a CPU.

    Why: it needs an accelerator: fails when the trainer is built, after the data is tokenized and the model loaded.
    Source: accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.__post_init__
    Fix: remove `fsdp`.
    """
    if device.vendor == "cpu" and run.fsdp:
        key = "fsdp" if run.fsdp_words else "accelerate"
        yield key, f"FSDP needs a GPU or NPU, and the machine has only CPUs; remove `{key}`"


@rule("DEV015", NOTE, about=subjects.machine)
def device_note(_run: RunSettings, machine: Machine) -> Findings:
    """A short form of a device was read as one of several.

    Why: `a100` may be the 40 GB or the 80 GB card.
    Source: own (names of devices)
    Fix: write the device in full.
    """
    if machine.note:
        yield "machine", f"{machine.note}; if that is wrong, write the full name of the device"


@rule("DEV017", NOTE, about=subjects.machine)
def abilities_unknown(run: RunSettings, machine: Machine) -> Findings:
    """Only the device's memory is known, so the settings that depend on the device are not judged.

    Why: a machine such as `1x48g` gives the size of the memory, but neither vendor nor generation of the device.
    Memory is judged with the least that devices of such a size leave usable, the rest is taken on trust.
    Source: own (names of devices)
    Fix: name the device, as `--machine 1xa6000`.
    """
    unknown = machine.device.vendor == "unknown" and not run.args.flag("use_cpu")
    if unknown and (asked := ", ".join(_settings_by_device(run))):
        found = f"device {machine.device.id} is known by its memory only, so whether it supports {asked} is not judged"
        yield "machine", f"{found}; name the device, such as `--machine 1xa6000`"


def _settings_by_device(run: RunSettings) -> Iterator[str]:
    """Yield those of the recipe's settings that only some devices support, each as text for a message such as
    `flash_attn: fa2`."""
    yield from (f"`{key}`" for key in _SWITCHES_BY_DEVICE if run.args.flag(key))
    if run.args.get("flash_attn") == "fa2":
        yield "`flash_attn: fa2`"
    if bnb_bits(run):
        yield "`quantization_bit`"
    name = str(run.args.get("optim"))
    if optimizer_choice(name).vendors is not None or is_bnb_optimizer(name):
        yield f"`optim: {name}`"
    if run.args.get("ddp_backend") in _BACKENDS:
        yield f"`ddp_backend: {run.args.get('ddp_backend')}`"
