"""Seconds that the CPU needs to launch the kernels of a layer and to run the hooks of ZeRO-3 and FSDP, and the seconds
that the device waits for the CPU in a micro batch.

A device that finishes kernels sooner than Python launches them waits. This limits small models and small micro
batches."""

from __future__ import annotations

from collections.abc import Callable

from validator.physics.architecture import NORMS
from validator.physics.compute import expert_cost, experts_reached
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import TimeTerm
from validator.physics.rates import AttainedRates, PassCost
from validator.physics.training_step import TrainingStep, forward_passes, layer_passes

# Seconds to start a kernel from Python in the forward pass, and from autograd's engine in the backward pass: Qwen's
# README, whose 1.8B and 7B take no less for 256 tokens than for 512 on an A100.
_LAUNCH_SECONDS, _BACKWARD_LAUNCH_SECONDS = 18e-6, 11e-6
# Kernels of one norm, of one rotation, of activation, residuals and attention, forward. Kernels that choose experts and
# run them in grouped matmuls (transformers 5, integrations/moe.py).
_NORM_KERNELS, _ROTARY_KERNELS, _OTHER_KERNELS, _GROUPED_EXPERT_KERNELS = 6, 10, 8, 25
# Making quantized weights whole, in Python for the most part (bitsandbytes, autograd/_functions.py). An adapter's: two
# products, casts, dropout, scale and sum.
_DEQUANTIZATION_KERNELS, _ADAPTER_KERNELS = {4: 4, 8: 25}, 7
# Kernels of one expert in a Python loop beside its adapters: its tokens are found, gathered, weighted and added
# (transformers 4, Qwen3MoeSparseMoeBlock.forward). Finding them waits for the device, which counts as further
# launches.
_KERNELS_PER_EXPERT, _LAUNCHES_PER_WAIT = 12, 4


def launch_cost(step: TrainingStep, layer: DecoderLayer) -> PassCost:
    """CPU seconds to launch all kernels of one layer, forward and backward, without those of experts in a Python loop.
    The backward pass has about two kernels for each kernel of the forward pass."""
    number = _layer_kernels(step, layer)
    return PassCost(TimeTerm.KERNEL_LAUNCHES, _LAUNCH_SECONDS * number, 2 * _BACKWARD_LAUNCH_SECONDS * number)


def expert_loop_cost(step: TrainingStep, layer: DecoderLayer) -> PassCost:
    """CPU seconds of the Python loop that runs the experts of one layer one after another, forward and backward. Zero
    in layers without experts, and if the experts run in grouped matmuls."""
    if not layer.mixture or step.work.experts == "grouped":
        return PassCost(TimeTerm.KERNEL_LAUNCHES, 0.0, 0.0)
    adapters = sum(step.is_adapted(each) for each in layer.linears if each.routed)
    number, reached = _KERNELS_PER_EXPERT + _ADAPTER_KERNELS * adapters, experts_reached(step)
    forward = _LAUNCH_SECONDS * (number + _LAUNCHES_PER_WAIT) * reached
    return PassCost(TimeTerm.KERNEL_LAUNCHES, forward, 2 * _BACKWARD_LAUNCH_SECONDS * number * reached)


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
    return number + (_GROUPED_EXPERT_KERNELS if layer.mixture else 0.0)


# Seconds of the processor in each pass through a module, whose parameters are fetched and released one by one
# (deepspeed, zero/partitioned_param_coordinator.py, fetch_sub_module). What runs of few tokens take longer
# under ZeRO-3: 0.18 to 0.3 ms for Qwen's README on 1, 2 and 4 A100, 0.25 for DeepSpeedExamples on 4 H100. FSDP
# takes as long for a parameter: short samples of fms-acceleration on 2 A100 with LoRA on 4-bit weights.
_HOOK_SECONDS = 250e-6
# Modules of a layer beside its linear ones; those that an adapter adds to one. Experts of a layer count as one
# (LLaMA-Factory, model_utils/moe.py, add_z3_leaf_module), whose parameters are fetched and released one by one: on the
# CPU, without streams and events, DeepSpeed needs 20 to 35 us for each of them and each pass.
_OTHER_MODULES, _ADAPTER_MODULES, _LEAF_PARAMETER_SECONDS = 6, 4, 50e-6


def hook_cost(step: TrainingStep, layer: DecoderLayer) -> PassCost:
    """CPU seconds of the ZeRO-3 or FSDP hooks in one forward and one backward pass through a layer. Zero if no weights
    are gathered."""
    match step.strategy.gathers:
        case "module":
            seconds = _HOOK_SECONDS * _zero3_modules(step, layer)
            seconds += _LEAF_PARAMETER_SECONDS * _expert_parameters(step, layer)
        case "layer":
            seconds = _HOOK_SECONDS * _fsdp_parameters(step, layer)
        case _:
            seconds = 0.0
    return PassCost(TimeTerm.KERNEL_LAUNCHES, seconds, seconds)


def _zero3_modules(step: TrainingStep, layer: DecoderLayer) -> float:
    linears = (each for each in layer.linears if not each.routed)
    return _OTHER_MODULES + sum(each.number * (1 + _ADAPTER_MODULES * step.is_adapted(each)) for each in linears)


def _expert_parameters(step: TrainingStep, layer: DecoderLayer) -> float:
    """Number of parameters of one layer's experts that are linear modules, with their adapters."""
    return sum(each.number * (1 + 2 * step.is_adapted(each)) for each in layer.linears if each.routed)


def _fsdp_parameters(step: TrainingStep, layer: DecoderLayer) -> float:
    """Number of parameters of one layer for which the hooks of FSDP take time. FSDP gathers a whole layer at once, and
    then makes a view of each parameter (torch, distributed/fsdp/_flat_param.py)."""
    linears = sum(each.number * (1 + 2 * step.is_adapted(each)) for each in layer.linears)
    return step.arch.norms_per_layer + linears + (2 if layer.experts else 0)


# How sharply the slower of the two decides: infinitely if one of them never waited for the other. Qwen's README times
# 256 to 8192 tokens on A100, where each is the slower one in turn.
_OVERLAP_EXPONENT = 3


def launch_stalls(step: TrainingStep, rates: AttainedRates, worked: float) -> PassCost:
    """Seconds of a micro batch that the device waits because the CPU launches kernels more slowly than the device runs
    them. `worked`: seconds that the device itself computes.

    Launches overlap with computation, so only a part of the CPU's seconds counts. A Python loop over experts overlaps
    only with what the experts compute, because it waits for the device at each expert."""
    launched = _of_all_layers(step, _launch_and_hook_cost)
    inside = stalls = PassCost(TimeTerm.KERNEL_LAUNCHES, 0.0, 0.0)
    if step.arch.ffn.experts and step.work.experts != "grouped":
        inside = _of_all_layers(step, lambda layer_step, layer: expert_cost(layer_step, rates, layer))
        stalls = _of_all_layers(step, lambda layer_step, layer: _expert_loop_stalls(layer_step, rates, layer))
    launches = launched.forward + launched.backward
    share = _stall(launches, worked - inside.forward - inside.backward) / launches
    return PassCost(
        TimeTerm.KERNEL_LAUNCHES,
        share * launched.forward + stalls.forward,
        share * launched.backward + stalls.backward,
    )


def _stall(launches: float, worked: float) -> float:
    """Seconds that a device waits which computes for `worked` seconds while the CPU launches for `launches` seconds."""
    return float((worked**_OVERLAP_EXPONENT + launches**_OVERLAP_EXPONENT) ** (1 / _OVERLAP_EXPONENT) - worked)


def _expert_loop_stalls(step: TrainingStep, rates: AttainedRates, layer: DecoderLayer) -> PassCost:
    cpu, device = expert_loop_cost(step, layer), expert_cost(step, rates, layer)
    return PassCost(cpu.term, _stall(cpu.forward, device.forward), _stall(cpu.backward, device.backward))


def _launch_and_hook_cost(step: TrainingStep, layer: DecoderLayer) -> PassCost:
    launches, hooks = launch_cost(step, layer), hook_cost(step, layer)
    return PassCost(launches.term, launches.forward + hooks.forward, launches.backward + hooks.backward)


def _of_all_layers(step: TrainingStep, cost: Callable[[TrainingStep, DecoderLayer], PassCost]) -> PassCost:
    """Return what all layers of a micro batch cost together. `cost`: returns the cost of one layer, without its
    recomputation, which counts in the backward pass."""
    forward = backward = 0.0
    for layer, every, visited, recomputed in layer_passes(step):
        each = cost(step.for_layer(layer), layer)
        forward += forward_passes(step) * every * each.forward
        backward += visited * each.backward + recomputed * each.forward
    return PassCost(TimeTerm.KERNEL_LAUNCHES, forward, backward)
