"""Memory of one layer's feed-forward block, dense or a mixture of experts: what it saves for the backward pass, and the
workspace of that pass. Bytes of a micro batch.

Derived from the operators' own rules: a product saves both factors. Checked operator by operator against the
simulation."""

from __future__ import annotations

from validator.physics.decoder_layers import DecoderLayer
from validator.physics.saved_inputs import (
    saved_by_dora,
    saved_by_half_layer_norms,
    saved_by_norm,
    saved_dropout_mask,
    saved_input,
)
from validator.physics.training_step import TrainingStep


def feed_forward_width(step: TrainingStep, layer: DecoderLayer) -> int:
    """Elements per token between the two products of the block."""
    ffn = step.for_layer(layer).arch.ffn
    return ffn.experts_per_token * ffn.expert_width if layer.mixture else ffn.width


def _dense_saved_bytes(step: TrainingStep, layer: DecoderLayer, width: int) -> float:
    """Bytes per token of a dense block: results of gate and up, the activation, and their product if `down` trains or
    is adapted. A fused kernel recomputes the activation (Liger Kernel 0.8, ops/swiglu.py)."""
    parts = (2 if step.work.fused_kernels else 3) if step.arch.ffn.gated else 2 if step.arch.ffn.quick_gelu else 1
    saved = (
        _new_gelu_saved_bytes(step)
        if step.arch.ffn.new_gelu
        else parts * (4.0 if step.norm_output_fp32 else step.sizes.compute)
    ) * width
    alike = step.arch.parallel and step.arch.norms_per_layer == 1 and _attention_saves_input(step, layer)
    saved += saved_input(step, step.arch.hidden, layer.readers, "first half" if alike else "norm")
    saved += saved_by_dora(step, (*layer.readers, *layer.down))
    return saved + saved_input(step, width, layer.down[:1], "product")


def _new_gelu_saved_bytes(step: TrainingStep) -> float:
    """Bytes per element of an activation that is written out (transformers, NewGELUActivation): the cubed value, the
    hyperbolic tangent, and both factors. Under autocast all but one factor are fp32, as cubing is."""
    compute = step.sizes.compute
    return 3 * (4.0 if step.work.precision == "amp" else compute) + compute


def _attention_saves_input(step: TrainingStep, layer: DecoderLayer) -> bool:
    """True if attention keeps what it reads: its own weights train, or it is adapted."""
    readers = layer.by_role("q", "k", "v", "qkv")
    return not step.trains_adapter or any(linear.role in step.work.adapter.targets for linear in readers)


def _separate_experts_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token of routed experts that are linear modules. Each chosen expert saves what a dense block saves, its
    result, the weighted result and two indices; the router saves its input and fp32 probabilities."""
    ffn, hidden, routed = step.arch.ffn, step.arch.hidden, layer.routed
    saved = 4.0 * ffn.experts + saved_input(step, hidden, layer.by_role("router"))
    each = _dense_saved_bytes(step, routed, ffn.expert_width) + 2 * step.sizes.compute * hidden + 16.0
    return saved + ffn.experts_per_token * each


def _fused_experts_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token of routed experts in one tensor: results of both matrices, the activation, the router's fp32
    probabilities. Clamped experts also save the clamped results and the gate in two steps; experts added up by index
    the weighted result, three indices, and an adapted router's input. Trained experts also save the router's input, a
    copy of it for each chosen expert, and the product."""
    ffn, hidden, compute = step.arch.ffn, step.arch.hidden, step.sizes.compute
    chosen = ffn.experts_per_token
    parts = (3 if ffn.gated else 2) + (3 if ffn.clamped_swiglu else 0)
    saved = compute * chosen * (parts * ffn.expert_width + hidden) + 4.0 * ffn.experts
    if ffn.index_add:
        saved += chosen * ((4.0 if step.sizes.autocast_copies else compute) * hidden + 24.0)
    if step.trains_adapter:
        return saved + (saved_input(step, hidden, layer.by_role("router")) if ffn.index_add else 0.0)
    return saved + compute * (chosen * (ffn.expert_width + hidden) + hidden)


def feed_forward_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    ffn = step.arch.ffn
    per_token = saved_by_half_layer_norms(step, second=True) + saved_dropout_mask(step)
    if layer.mixture:
        per_token += (
            _fused_experts_saved_bytes(step, layer) if layer.experts else _separate_experts_saved_bytes(step, layer)
        )
        if ffn.shared_width:
            per_token += _dense_saved_bytes(step, layer.unrouted, ffn.shared_width)
            per_token += step.sizes.compute * step.arch.hidden if ffn.shared_gate else 0.0  # the result that is gated
        per_token += _scaled_router_saved_bytes(step, layer) if ffn.router_scaled else 0.0
    else:
        per_token += _dense_saved_bytes(step, layer, ffn.width)
    return step.tokens * (per_token + _per_layer_input_saved_bytes(step, layer))


def _scaled_router_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token of a router with a norm and scales of its own: the norms of the dense block's result and of the
    experts' input and output, and the router's input, normed and scaled twice."""
    hidden, residual_size = step.arch.hidden, step.sizes.residual
    normed = 2 * saved_by_norm(step, hidden, 2) + saved_by_norm(step, hidden, residual_size)
    return (
        normed
        + 4.0 * hidden
        + (0.0 if step.trains_adapter else residual_size * hidden)
        + saved_input(step, hidden, layer.by_role("router"))
    )


def _per_layer_input_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token of a layer's own embedding: input and result of the gate, the activation, the product, and the
    norm of the result."""
    width, hidden = step.arch.per_layer_input_width, step.arch.hidden
    if not width:
        return 0.0
    saved = 2 * step.sizes.compute * width + saved_input(step, hidden, layer.by_role("input_gate"))
    return saved + saved_input(step, width, layer.by_role("input_out"), "product") + saved_by_norm(step, hidden, 2)


def feed_forward_backward_workspace(step: TrainingStep, layer: DecoderLayer) -> float:
    """Temporary bytes of the backward pass of the feed-forward block: gradients of product, activation and up (a fused
    kernel writes all but the first over what it saved), or the fp32 temporaries of a norm on the block's result if
    these are more."""
    hidden, sizes, fused = step.arch.hidden, step.sizes, step.work.fused_kernels
    chosen = sizes.compute * step.arch.ffn.experts_per_token * hidden if layer.mixture else 0.0
    inside = (1.0 if fused and not layer.mixture else 2.0) * sizes.compute * feed_forward_width(step, layer) + chosen
    if layer.mixture and not layer.experts:  # expert by expert, each giving the whole block's input a gradient
        inside = inside / step.arch.ffn.experts + 2 * sizes.residual * hidden
    norm = 16.0 * hidden if step.arch.norms_per_layer >= 4 and not fused else 0.0
    return step.tokens * (max(inside, norm) + sizes.residual * hidden)
