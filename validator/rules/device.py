"""DEV: what the target device can do. What it has kernels for is in kernels.py."""

from __future__ import annotations

from collections.abc import Iterator

from validator.diagnostic import Severity
from validator.job.job import Job
from validator.rules import edits
from validator.rules.kernels import MAKERS, bits, by_bitsandbytes, target
from validator.rules.rule import Finding, rule

_BRAIN = ("bf16", "pure_bf16", "bf16_full_eval")
_AMPERE = 8.0
_BACKENDS = {"nccl": ("nvidia", "amd"), "hccl": ("ascend",)}
_FLAGS = (*_BRAIN, "fp8", "tf32", "use_unsloth", "use_unsloth_gc", "enable_liger_kernel")


@rule("DEV001", Severity.ERROR)
def no_bf16(job: Job) -> Iterator[Finding]:
    """The device has no bf16.

    Why: Ascend 910A has no bf16 arithmetic, and torch_npu refuses it at parse, on every rank. V100 and T4 have none
    either. There LLaMA-Factory starts, because the torch it needs, 2.4 and later, counts emulation as support
    (`torch.cuda.is_bf16_supported`): every product is then computed in 32 bits, on V100 at 15.7 instead of 125
    TFLOP/s (NVIDIA's data sheet), and attention writes out its whole matrix, as no fused kernel takes bf16 there. A run
    planned for bf16 does not end in its time; this is the one refusal of what LLaMA-Factory would start.
    Source: transformers/training_args.py:TrainingArguments._validate_args,
    transformers/utils/import_utils.py:is_torch_bf16_gpu_available, own (data sheets)
    Fix: `fp16: true` instead of `bf16: true`; on a GPU from Ampere on and on Ascend 910B keep bf16.
    """
    device = target(job)
    if device and not device.bf16 and not job.flag("use_cpu"):
        how = "" if device.vendor == "ascend" else ", torch emulates it in 32 bits, many times slower"
        for key in _BRAIN:
            if job.flag(key):
                instead = "fp16_full_eval" if key == "bf16_full_eval" else "fp16"
                fix = None if key == "pure_bf16" or instead in job.values else edits.rename(key, instead, safe=False)
                yield key, f"{device.id} has no bf16{how}; write `{instead}: true` in place of `{key}`", fix


@rule("DEV002", Severity.ERROR)
def bf16_on_cpu(job: Job) -> Iterator[Finding]:
    """bf16 on a CPU lacks what it needs.

    Why: refused at parse: transformers asks for `use_cpu: true`, and `pure_bf16` is refused on a CPU in any case.
    Source: transformers/training_args.py:TrainingArguments._validate_args,
    llamafactory/hparams/parser.py:get_train_args
    Fix: `use_cpu: true` beside `bf16: true`; no `pure_bf16`.
    """
    device = target(job)
    if device is None or device.vendor != "cpu":
        return
    if job.flag("pure_bf16"):
        yield "pure_bf16", "`pure_bf16` is refused on a CPU; write `bf16: true` with `use_cpu: true`"
    for key in ("bf16", "bf16_full_eval"):
        if job.flag(key) and not job.flag("use_cpu"):
            yield key, f"`{key}` on a CPU needs `use_cpu: true`"


@rule("DEV003", Severity.WARNING)
def no_flash_attention(job: Job) -> Iterator[Finding]:
    """FlashAttention-2 is asked for on a device that has none.

    Why: flash-attn needs Ampere or later and cannot be used on V100 or T4; without the package LLaMA-Factory only
    warns and goes on with transformers' default. With it, the first step fails.
    Source: llamafactory/model/model_utils/attention.py:configure_attn_implementation, own (data sheets)
    Fix: `flash_attn: auto`, or sdpa.
    """
    device = target(job)
    if device and job.get("flash_attn") == "fa2" and not device.flash_attention:
        yield "flash_attn", f"{device.id} has no FlashAttention-2; write `flash_attn: sdpa`"


@rule("DEV004", Severity.WARNING)
def no_fp8(job: Job) -> Iterator[Finding]:
    """fp8 training is asked for on a device that has none.

    Why: it needs Ada, Hopper or later; elsewhere the first step fails, or, where torchao is missing too, the run goes
    on without fp8 and says so only in the log.
    Source: llamafactory/train/fp8_utils.py:create_fp8_kwargs, own (data sheets)
    Fix: `bf16: true` without `fp8`.
    """
    device = target(job)
    if device and job.flag("fp8") and not device.fp8:
        yield "fp8", f"{device.id} has no fp8; remove `fp8`"


@rule("DEV008", Severity.ERROR)
def no_tf32(job: Job) -> Iterator[Finding]:
    """tf32 is asked for on a device that has none.

    Why: refused at parse, on every rank: it needs an NVIDIA GPU from Ampere on.
    Source: transformers/training_args.py:TrainingArguments.__post_init__, own (data sheets)
    Fix: remove `tf32`.
    """
    device = target(job)
    if device and job.flag("tf32") and (device.vendor != "nvidia" or (device.capability or 0) < _AMPERE):
        yield "tf32", f"{device.id} has no tf32; remove it", edits.drop("tf32")


@rule("DEV009", Severity.ERROR)
def checkpointing_needs_cuda(job: Job) -> Iterator[Finding]:
    """unsloth's gradient checkpointing is asked for without CUDA.

    Why: it moves tensors to "cuda" by name: fails at the first step, after the data is tokenized and the model loaded.
    Source: llamafactory/model/model_utils/checkpointing.py:get_unsloth_gradient_checkpointing_func
    Fix: remove `use_unsloth_gc`; LLaMA-Factory's own checkpointing is on anyway.
    """
    device = target(job)
    if device and device.vendor == "cpu" and job.trains and job.checkpointing == "offloaded":
        yield "use_unsloth_gc", "`use_unsloth_gc` needs CUDA; remove it", edits.drop("use_unsloth_gc")


@rule("DEV012", Severity.WARNING)
def accelerator_unused(job: Job) -> Iterator[Finding]:
    """The recipe forces the CPU on a machine with accelerators.

    Why: `use_cpu` leaves them idle.
    Source: transformers/training_args.py:TrainingArguments._setup_devices
    Fix: remove `use_cpu`.
    """
    if job.machine and job.machine.device.vendor != "cpu" and job.flag("use_cpu"):
        yield "use_cpu", f"`use_cpu` leaves {job.machine.device.id} idle; remove it"


@rule("DEV013", Severity.WARNING)
def backend_of_another_device(job: Job) -> Iterator[Finding]:
    """The communication library belongs to other devices.

    Why: NCCL is NVIDIA's and AMD's, HCCL Ascend's; the processes cannot form a group.
    Source: transformers/training_args.py:TrainingArguments._setup_devices
    Fix: remove `ddp_backend`; the right one is chosen by itself.
    """
    device, name = target(job), str(job.get("ddp_backend"))
    if device and name in _BACKENDS and device.vendor not in _BACKENDS[name]:
        yield "ddp_backend", f"`ddp_backend: {name}` does not work on {device.id}; remove it"


@rule("DEV014", Severity.ERROR)
def sharding_on_cpu(job: Job) -> Iterator[Finding]:
    """FSDP is used on a CPU.

    Why: it needs an accelerator: fails when the trainer is built, after the data is tokenized and the model loaded.
    Source: accelerate/utils/dataclasses.py:FullyShardedDataParallelPlugin.__post_init__
    Fix: remove `fsdp`.
    """
    device = target(job)
    if device and device.vendor == "cpu" and job.fsdp:
        key = "fsdp" if job.fsdp_words else "accelerate"
        yield key, f"FSDP needs an accelerator; remove `{key}`"


@rule("DEV015", Severity.NOTE)
def device_note(job: Job) -> Iterator[Finding]:
    """A short form of a device was read as one of several.

    Why: `a100` may be the 40 GB or the 80 GB card.
    Source: own (names of devices)
    Fix: write the device in full.
    """
    if job.machine and job.machine.note:
        yield "machine", job.machine.note


@rule("DEV017", Severity.NOTE)
def abilities_unknown(job: Job) -> Iterator[Finding]:
    """What the recipe asks of the device is not judged, as only the device's memory is known.

    Why: a machine such as `1x48g` says how much memory there is, not whose and of which generation the device is.
    Memory is judged with the least that devices of such a size leave usable, the rest is taken on trust.
    Source: own (names of devices)
    Fix: name the device, as `--machine 1xa6000`.
    """
    unknown = job.machine is not None and job.machine.device.vendor == "unknown" and not job.flag("use_cpu")
    if job.machine and unknown and (asked := list(_asked(job))):
        device = job.machine.device.id
        yield "machine", f"only the memory of {device} is known: whether it can do {', '.join(asked)} is not judged"


def _asked(job: Job) -> Iterator[str]:
    """The keys of the recipe that not every device can do."""
    yield from (f"`{key}`" for key in _FLAGS if job.flag(key))
    if job.get("flash_attn") == "fa2":
        yield "`flash_attn: fa2`"
    if bits(job):
        yield "`quantization_bit`"
    name = str(job.get("optim"))
    if name in MAKERS or by_bitsandbytes(name):
        yield f"`optim: {name}`"
    if job.get("ddp_backend") in _BACKENDS:
        yield f"`ddp_backend: {job.get('ddp_backend')}`"
