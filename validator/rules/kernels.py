"""DEV005 to DEV007, DEV010, DEV011 and DEV016: what a device has kernels for."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules.rule import Finding, rule
from validator.tables.devices import Device

# optimizer -> who makes the devices that the package behind it needs
MAKERS = {"adamw_torch_npu_fused": ("ascend",), "adamw_torch_xla": (), "adamw_apex_fused": ("nvidia", "amd")}


def target(job: Job) -> Device | None:
    """The target, where it is known what it can do; what else depends on that, DEV017 says."""
    device = job.machine.device if job.machine else None
    return device if device and device.vendor != "unknown" else None


@rule("DEV005", Severity.WARNING)
def quantization_on_ascend(job: Job) -> Iterator[Finding]:
    """bitsandbytes is used on Ascend.

    Why: LLaMA-Factory does not forbid it, but bitsandbytes ships no Ascend kernels: what is left is plain PyTorch,
    slow if it runs at all, or a build from source that fits the installed CANN, in nf4 without double quantization.
    Failures are reported from the first forward pass, after the model is loaded (LLaMA-Factory issues 6452, 9465).
    Source: own (reports of bitsandbytes on Ascend)
    Fix: LoRA with ZeRO-3 in bf16; or `double_quantization: false` and a try of a few steps first.
    """
    device = target(job)
    if device and device.vendor == "ascend" and device.bf16 and bits(job):
        text = f"{bits(job)}-bit bitsandbytes on {device.id} needs a build from source that fits CANN"
        if bits(job) == 4 and job.flag("double_quantization"):
            text += ", and `double_quantization: false`"
        yield "quantization_bit", f"{text}; LoRA with ZeRO-3 needs neither"


@rule("DEV006", Severity.ERROR)
def quantization_on_old_ascend(job: Job) -> Iterator[Finding]:
    """bitsandbytes is used on Ascend 910A.

    Why: its kernels for Ascend are made for 910B; on 910A quantizing stops with NotImplementedError, after the data is
    tokenized, and LLaMA-Factory will not mend it (issues 7337, 3867).
    Source: own (reports of bitsandbytes on Ascend)
    Fix: LoRA in fp16 with ZeRO-3.
    """
    device = target(job)
    if device and device.vendor == "ascend" and not device.bf16 and bits(job):
        yield "quantization_bit", f"bitsandbytes does not run on {device.id}; use LoRA in fp16 with ZeRO-3"


@rule("DEV007", Severity.WARNING)
def quantization_bits_unsupported(job: Job) -> Iterator[Finding]:
    """bitsandbytes does not quantize to this number of bits on this device.

    Why: 8-bit matrix products need compute capability 7.5 (bitsandbytes' requirements); on V100 the first step fails,
    or by version a slow and less exact path is taken (bitsandbytes issues 529, 672).
    Source: own (the requirements of bitsandbytes)
    Fix: `quantization_bit: 4`.
    """
    device = target(job)
    if device and device.vendor != "ascend" and bits(job) in (4, 8) and bits(job) not in device.bitsandbytes:
        known = " and ".join(str(bits) for bits in device.bitsandbytes) or "none"
        yield "quantization_bit", f"bitsandbytes on {device.id} knows {known} bits, not {bits(job)}"


def bits(job: Job) -> int:
    """Bits that bitsandbytes quantizes to while loading; 0 where it does not."""
    asked = job.quantization
    return asked.bits if job.adapts and asked.loads and asked.method == "bnb" else 0


@rule("DEV010", Severity.WARNING)
def kernels_for_cuda(job: Job) -> Iterator[Finding]:
    """Kernels written for NVIDIA GPUs are asked for on Ascend.

    Why: unsloth and its gradient checkpointing call CUDA by name, and liger's Triton kernels run there only with
    triton-ascend: the run fails or gains nothing.
    Source: llamafactory/model/model_utils/checkpointing.py:get_unsloth_gradient_checkpointing_func,
    llamafactory/model/model_utils/liger_kernel.py:apply_liger_kernel
    Fix: remove the setting.
    """
    device = target(job)
    for key in ("use_unsloth", "use_unsloth_gc", "enable_liger_kernel"):
        if device and device.vendor == "ascend" and job.flag(key):
            yield key, f"`{key}` is made for NVIDIA GPUs and may fail on {device.id}; remove it"


@rule("DEV011", Severity.WARNING)
def optimizer_without_kernels(job: Job) -> Iterator[Finding]:
    """An 8-bit or paged optimizer is used on a device that bitsandbytes has no optimizer for.

    Why: its kernels are CUDA's: on Ascend the trainer or the first step fails, after the model is loaded.
    Source: transformers/trainer_optimizer.py:_get_bitsandbytes_optimizer, own (the requirements of bitsandbytes)
    Fix: `optim: adamw_torch`, or shard the states with ZeRO-2.
    """
    device, name = target(job), str(job.get("optim"))
    if device and device.vendor == "ascend" and by_bitsandbytes(name):
        yield "optim", f"`{name}` needs bitsandbytes' CUDA kernels, which {device.id} has not; write adamw_torch"


@rule("DEV016", Severity.ERROR)
def optimizer_of_another_device(job: Job) -> Iterator[Finding]:
    """The optimizer belongs to other devices.

    Why: its package (torch_npu, torch_xla, apex) is not there, or its kernels are CUDA's, as those of GaLore in 8 bits:
    the run fails when the trainer is built, after the data is tokenized and the model loaded on every rank.
    Source: transformers/trainer_optimizer.py:_get_adamw_torch_npu_fused,
    transformers/trainer_optimizer.py:_get_adamw_torch_xla, transformers/trainer_optimizer.py:_get_adamw_apex_fused,
    llamafactory/train/trainer_utils.py:_create_galore_optimizer
    Fix: `optim: adamw_torch`.
    """
    device, name = target(job), str(job.get("optim"))
    if device is None or not job.trains:
        return
    galore = job.flag("use_galore") and "8bit" in name and device.vendor == "cpu"
    if galore or (name in MAKERS and device.vendor not in MAKERS[name]):
        yield "optim", f"`{name}`{' for GaLore' if galore else ''} does not run on {device.id}; write adamw_torch"


def by_bitsandbytes(optimizer: str) -> bool:
    """Whether bitsandbytes computes the steps of this optimizer."""
    return "8bit" in optimizer or optimizer.startswith("paged_")
