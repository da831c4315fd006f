"""Seconds that the CPU needs to launch the kernels of a layer and to run the hooks of ZeRO-3 and FSDP, and the seconds
that the device waits for the CPU in a micro batch.

A device that finishes kernels sooner than Python launches them waits. This limits small models and small micro
batches."""

from __future__ import annotations

from validator.physics.architecture import NORMS
from validator.physics.compute import experts_reached
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import TimeTerm
from validator.physics.rates import PassCost
from validator.physics.training_step import TrainingStep, forward_passes, layer_passes

# Seconds to start a kernel from Python in the forward pass, and from autograd's engine in the backward pass: Qwen's
# README, whose 1.8B and 7B take no less for 256 tokens than for 512 on an A100.
_LAUNCH_SECONDS, _BACKWARD_LAUNCH_SECONDS = 18e-6, 11e-6
# Kernels of one norm, of one rotation, of activation, residuals and attention, forward.
_NORM_KERNELS, _ROTARY_KERNELS, _OTHER_KERNELS = 6, 10, 8
# Making quantized weights whole, in Python for the most part (bitsandbytes, autograd/_functions.py). An adapter's: two
# products, casts, dropout, scale and sum. A routed expert's beside its products: its tokens chosen, gathered and added.
_DEQUANTIZATION_KERNELS, _ADAPTER_KERNELS, _KERNELS_PER_EXPERT = {4: 4, 8: 25}, 7, 8


def launch_cost(step: TrainingStep, layer: DecoderLayer) -> PassCost:
    """CPU seconds to launch all kernels of one layer, forward and backward. The backward pass has about two kernels for
    each kernel of the forward pass."""
    number = _layer_kernels(step, layer)
    return PassCost(TimeTerm.KERNEL_LAUNCHES, _LAUNCH_SECONDS * number, 2 * _BACKWARD_LAUNCH_SECONDS * number)


def _layer_kernels(step: TrainingStep, layer: DecoderLayer) -> float:
    arch, work = step.arch, step.work
    per_norm = 1 if work.fused_kernels or NORMS[arch.norm].one_kernel else _NORM_KERNELS
    norms = arch.norms_per_layer + (2 if arch.attn.qk_norm or arch.attn.full_width_qk_norm else 0)
    plain = [each for each in layer.linears if not each.routed]
    casts = step.sizes.residual > step.sizes.compute or step.sizes.autocast_copies
    each = 1 + int(casts) + _DEQUANTIZATION_KERNELS.get(work.quant_bits, 0)
    number: float = (
        _OTHER_KERNELS + norms * per_norm + (2 if work.fused_kernels else _ROTARY_KERNELS) + each * len(plain)
    )
    number += _ADAPTER_KERNELS * sum(map(step.is_adapted, plain))
    if layer.mixer:
        number += layer.mixer.kernel_count(step)
    return number + (_expert_kernels(step, layer) if layer.mixture else 0.0)


def _expert_kernels(step: TrainingStep, layer: DecoderLayer) -> float:
    """Number of kernels that the routed experts of one layer launch in the forward pass. Fused experts run as grouped
    matmuls (transformers 5, integrations/moe.py); separate experts run one by one."""
    if step.work.experts_fused:
        return 25.0
    adapters = sum(step.is_adapted(each) for each in layer.linears if each.routed)
    return experts_reached(step) * (_KERNELS_PER_EXPERT + 4 + _ADAPTER_KERNELS * adapters)


# Seconds of the processor in each pass through a module, whose parameters are fetched and released one by one
# (deepspeed, zero/partitioned_param_coordinator.py, fetch_sub_module). What runs of few tokens take longer
# under ZeRO-3: 0.18 to 0.3 ms for Qwen's README on 1, 2 and 4 A100, 0.25 for DeepSpeedExamples on 4 H100. FSDP
# takes as long for a parameter: short samples of fms-acceleration on 2 A100 with LoRA on 4-bit weights.
_HOOK_SECONDS = 250e-6
# Modules of a layer beside its linear ones; those that an adapter adds to one. Experts of a layer count as one
# (LLaMA-Factory, model_utils/moe.py, add_z3_leaf_module).
_OTHER_MODULES, _ADAPTER_MODULES = 6, 4


def hook_cost(step: TrainingStep, layer: DecoderLayer) -> PassCost:
    """CPU seconds of the ZeRO-3 or FSDP hooks in one forward and one backward pass through a layer. Zero if no weights
    are gathered."""
    match step.strategy.gathers:
        case "module":
            number = _zero3_modules(step, layer)
        case "layer":
            number = _fsdp_parameters(step, layer)
        case _:
            number = 0.0
    return PassCost(TimeTerm.KERNEL_LAUNCHES, _HOOK_SECONDS * number, _HOOK_SECONDS * number)


def _zero3_modules(step: TrainingStep, layer: DecoderLayer) -> float:
    linears = (each for each in layer.linears if not each.routed)
    return _OTHER_MODULES + sum(each.number * (1 + _ADAPTER_MODULES * step.is_adapted(each)) for each in linears)


def _fsdp_parameters(step: TrainingStep, layer: DecoderLayer) -> float:
    """Number of parameters of one layer for which the hooks of FSDP take time. FSDP gathers a whole layer at once, and
    then makes a view of each parameter (torch, distributed/fsdp/_flat_param.py)."""
    linears = sum(each.number * (1 + 2 * step.is_adapted(each)) for each in layer.linears)
    return step.arch.norms_per_layer + linears + (2 if layer.experts else 0)


# How sharply the slower of the two decides: infinitely if one of them never waited for the other. Qwen's README times
# 256 to 8192 tokens on A100, where each is the slower one in turn.
_OVERLAP_EXPONENT = 3


def launch_stalls(step: TrainingStep, worked: float) -> PassCost:
    """Seconds of a micro batch that the device waits because the CPU launches kernels more slowly than the device runs
    them. `worked`: seconds that the device itself computes. Launches overlap with computation, so only a part of the
    CPU's seconds counts."""
    forward, backward = _cpu_seconds(step)
    launches = forward + backward
    share = ((worked**_OVERLAP_EXPONENT + launches**_OVERLAP_EXPONENT) ** (1 / _OVERLAP_EXPONENT) - worked) / launches
    return PassCost(TimeTerm.KERNEL_LAUNCHES, share * forward, share * backward)


def _cpu_seconds(step: TrainingStep) -> tuple[float, float]:
    """Return the CPU seconds of kernel launches and hooks for all layers of a micro batch, as a pair: forward pass,
    backward pass."""
    forward = backward = 0.0
    for layer, every, visited, recomputed in layer_passes(step):
        launches, hooks = launch_cost(step.for_layer(layer), layer), hook_cost(step.for_layer(layer), layer)
        per_pass = launches.forward + hooks.forward
        forward += forward_passes(step) * every * per_pass
        backward += visited * (launches.backward + hooks.backward) + recomputed * per_pass
    return forward, backward
