"""Bytes per token that norms and linear modules save of their inputs for the backward pass.

Derived from the operators' own rules: autograd saves a linear module's input only if the weight trains; norms work
on an fp32 copy. Checked operator by operator against the simulation."""

from __future__ import annotations

from typing import Literal

from validator.physics.architecture import NORMS, Linear
from validator.physics.training_step import TrainingStep


def saved_by_norm(step: TrainingStep, width: int, entering: float) -> float:
    """Bytes per token of a norm: its fp32 input, and the normalized value if its weight trains. `entering`: bytes per
    element of the input.

    A kernel saves its input as it is: nn.LayerNorm, whose input autocast makes fp32, and a fused norm (Liger Kernel
    0.8, ops/rms_norm.py). A LayerNorm that is written out saves the centred input twice."""
    norm = NORMS[step.arch.norm]
    if norm.one_kernel:
        return width * (4.0 if step.work.precision == "amp" or not norm.vectors else entering)
    if step.work.fused_kernels:
        return width * entering
    normalized = 0.0 if step.trains_adapter else 4.0 if norm.normalizes_fp32 else entering
    return width * (4.0 * norm.saved_fp32 + normalized)


def saved_per_layer_inputs(step: TrainingStep) -> float:
    """Bytes of a micro batch that the layers' own embeddings save: the inputs of all layers, and the norm over them
    (transformers, models/gemma4/modeling_gemma4.py, project_per_layer_inputs)."""
    arch = step.arch
    width = arch.layers * arch.per_layer_input_width
    return step.tokens * (step.sizes.compute * width + saved_by_norm(step, width, step.sizes.compute)) if width else 0.0


def saved_by_half_layer_norms(step: TrainingStep, second: bool = False) -> float:
    """Bytes per token of the norms of half a layer: one on the hidden state, which parallel halves may share, and with
    four norms a layer one on the result, too. `second`: the feed-forward half."""
    hidden, number = step.arch.hidden, step.arch.norms_per_layer
    if number == 1 and second:
        return 0.0
    before = saved_by_norm(step, hidden, step.sizes.residual)
    return before + (saved_by_norm(step, hidden, 2) if number >= 4 else 0.0)


def saved_dropout_mask(step: TrainingStep) -> float:
    """Bytes per token of the dropout mask on the result of half a layer."""
    return float(step.arch.hidden) if step.arch.dropout else 0.0


def shares_inputs(step: TrainingStep) -> bool:
    """True if a module keeps its input as it is, in compute precision, so that another keeper costs nothing."""
    if not step.trains_adapter:
        return True
    same = step.sizes.adapter == step.sizes.compute or (step.work.quant_bits > 0 and step.work.precision == "amp")
    return same and not step.work.adapter.dropout


def _saved_by_adapters(step: TrainingStep, width: int, modules: int, shared: bool) -> float:
    """Bytes per token that `modules` adapted modules save of one shared input of `width`.

    Under autocast each module casts to the adapter's fp32 and back, and saves a half-precision copy. Without autocast
    it saves the fp32 copy. bitsandbytes modules and half-precision adapters share the input as it is."""
    if modules == 0:
        return 0.0
    if shared:
        return step.sizes.compute * width
    masks = float(modules * width) if step.work.adapter.dropout else 0.0
    each = step.sizes.compute if step.work.precision == "amp" else step.sizes.adapter
    return modules * each * width + masks


def saved_input(
    step: TrainingStep,
    width: int,
    readers: tuple[Linear, ...],
    made_by: Literal["norm", "product", "attention", "first half"] = "norm",
) -> float:
    """Bytes per token that linear modules save of the input they all read. Results of products and of attention are in
    compute precision already. Attention saves its own result, which the caller counts, and the first of two parallel
    halves saves the input of both."""
    sizes, work = step.sizes, step.work
    if not step.trains_adapter:
        normed_in_compute = NORMS[step.arch.norm].returns_input_dtype and sizes.residual == sizes.compute
        if sizes.autocast_copies and made_by in ("norm", "first half") and not normed_in_compute:
            return len(readers) * sizes.compute * width
        return 0.0 if made_by == "first half" else sizes.compute * width
    adapted = sum(linear.role in work.adapter.targets for linear in readers)
    inner = sizes.compute if work.precision == "amp" else sizes.adapter
    low_rank = work.adapter.rank * inner * adapted if work.method == "lora" else 0.0
    eight = 0.0 if made_by == "attention" else _saved_by_8bit_matmul(step, width, adapted)
    shared = shares_inputs(step) and not (made_by == "norm" and step.norm_output_fp32)
    own = 0.0 if shared and made_by == "first half" else _saved_by_adapters(step, width, adapted, shared) + eight
    return own + low_rank


def _saved_by_8bit_matmul(step: TrainingStep, width: int, adapted: int) -> float:
    """Bytes per token of the input that 8-bit products save although their weight is frozen (bitsandbytes,
    MatMul8bitLt), unless an adapter saves the same tensor."""
    shared = adapted > 0 and shares_inputs(step)
    eight = step.work.quant_bits == 8 and not step.work.quant_grouped
    return step.sizes.compute * width if eight and not shared else 0.0


def saved_by_dora(step: TrainingStep, linears: tuple[Linear, ...]) -> float:
    """Bytes per token that DoRA's magnitudes save: they scale the base's and the adapter's result, so both are
    saved."""
    adapter = step.work.adapter
    if not adapter.dora:
        return 0.0
    return 2 * step.sizes.compute * sum(linear.outputs for linear in linears if linear.role in adapter.targets)
