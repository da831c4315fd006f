"""Bytes per token of their inputs that norms and linear modules save for the backward pass.

The formulas follow from what each operator saves: autograd saves a linear module's input only if the weight trains, and
norms work on an fp32 copy. They are checked operator by operator against the simulation, which runs the real model on
tensors without values."""

from __future__ import annotations

from typing import Literal

from validator.physics.architecture import NORMS, Linear
from validator.physics.training_step import TrainingStep


def saved_by_norm(step: TrainingStep, width: int, entering: float) -> float:
    """Bytes per token that a norm over `width` elements saves for backward: its input in fp32, and the normalized value
    if the norm's weight trains. `entering`: bytes per element of the input.

    A norm that is one kernel saves its input as it is; this holds for nn.LayerNorm, whose input autocast casts to fp32,
    and for fused kernels (Liger Kernel 0.8, ops/rms_norm.py). A LayerNorm that is written out operator by operator
    saves two fp32 tensors."""
    norm = NORMS[step.arch.norm]
    if norm.one_kernel:
        return width * (4.0 if step.work.precision == "amp" or not norm.vectors else entering)
    if step.work.fused_kernels:
        return width * entering
    result = 0.0 if step.trains_adapter else 4.0 if norm.normalizes_fp32 else entering
    return width * (4.0 * norm.saved_fp32 + result)


def saved_per_layer_inputs(step: TrainingStep) -> float:
    """Bytes per micro batch of the per-layer embeddings that all layers read, and of the input that their norm saves
    (transformers, models/gemma4/modeling_gemma4.py, project_per_layer_inputs). Zero for models without per-layer
    embeddings."""
    arch = step.arch
    width = arch.layers * arch.per_layer_input_width
    return step.tokens * (step.sizes.compute * width + saved_by_norm(step, width, step.sizes.compute)) if width else 0.0


def saved_by_half_layer_norms(step: TrainingStep, second: bool = False) -> float:
    """Bytes per token that the norms of one half of a layer save for backward. `second`: the feed-forward half, else
    the attention half. Each half has a norm on the hidden state; parallel halves may share one norm. In layers with
    four norms, each half also has a norm on its result."""
    hidden, number = step.arch.hidden, step.arch.norms_per_layer
    if number == 1 and second:
        return 0.0
    norm = saved_by_norm(step, hidden, step.sizes.residual)
    return norm + (saved_by_norm(step, hidden, 2) if number >= 4 else 0.0)


def saved_dropout_mask(step: TrainingStep) -> float:
    """Bytes per token of the dropout mask that one half of a layer saves for its result. Zero for models without
    dropout."""
    return float(step.arch.hidden) if step.arch.dropout else 0.0


def shares_inputs(step: TrainingStep) -> bool:
    """True if linear modules and adapters save their input as it is, in compute precision. Then modules that read the
    same input save it only once."""
    if not step.trains_adapter:
        return True
    is_same = step.sizes.adapter == step.sizes.compute or (step.work.quant_bits > 0 and step.work.precision == "amp")
    return is_same and not step.work.adapter.dropout


def _saved_by_adapters(step: TrainingStep, width: int, modules: int, is_shared: bool) -> float:
    """Bytes per token that `modules` adapted modules save of the input of `width` elements that all of them read.
    `is_shared`: the modules save the input as it is, so one copy is enough; this holds for bitsandbytes modules and for
    half-precision adapters.

    Otherwise each adapter casts the input to fp32. Under autocast the input is cast back, and each adapter saves a
    half-precision copy. Without autocast each adapter saves the fp32 copy."""
    if modules == 0:
        return 0.0
    if is_shared:
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
    """Bytes per token that linear modules (`readers`) save of the tensor of `width` elements that all of them read.
    `made_by`: the operator that made the tensor; "first half": the first of two parallel halves of the layer already
    saves the tensor.

    Results of matmuls and of attention are already in compute precision. Attention saves its own result, which the
    caller counts."""
    sizes, work = step.sizes, step.work
    if not step.trains_adapter:
        normed_in_compute = NORMS[step.arch.norm].returns_input_dtype and sizes.residual == sizes.compute
        if sizes.autocast_copies and made_by in ("norm", "first half") and not normed_in_compute:
            return len(readers) * sizes.compute * width
        return 0.0 if made_by == "first half" else sizes.compute * width
    adapters = sum(step.is_adapted(linear) for linear in readers)
    size = sizes.compute if work.precision == "amp" else sizes.adapter
    low_rank = work.adapter.rank * size * adapters if work.method == "lora" else 0.0
    int8 = 0.0 if made_by == "attention" else _saved_by_8bit_matmul(step, width, adapters)
    is_shared = shares_inputs(step) and not (made_by == "norm" and step.norm_output_fp32)
    copies = (
        0.0 if is_shared and made_by == "first half" else _saved_by_adapters(step, width, adapters, is_shared) + int8
    )
    return copies + low_rank


def _saved_by_8bit_matmul(step: TrainingStep, width: int, adapted: int) -> float:
    """Bytes per token of the input that 8-bit matmuls save although their weight is frozen (bitsandbytes,
    MatMul8bitLt). Zero if an adapter already saves the same tensor, and for other kinds of quantization."""
    is_shared = adapted > 0 and shares_inputs(step)
    is_8bit = step.work.quant_bits == 8 and not step.work.quant_grouped
    return step.sizes.compute * width if is_8bit and not is_shared else 0.0


def saved_by_dora(step: TrainingStep, linears: tuple[Linear, ...]) -> float:
    """Bytes per token that DoRA's magnitudes add to the bytes saved for backward. A magnitude scales the results of the
    base module and of the adapter, so both results are saved. Zero without DoRA."""
    adapter = step.work.adapter
    if not adapter.dora:
        return 0.0
    return 2 * step.sizes.compute * sum(linear.outputs for linear in linears if step.is_adapted(linear))
