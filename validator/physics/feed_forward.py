"""Memory of one layer's feed-forward block, dense or a mixture of experts, per micro batch: bytes that the block saves
for the backward pass, and temporary bytes of that pass.

The formulas follow from what each operator saves; a matmul, for example, saves both factors. They are checked operator
by operator against the simulation, which runs the real model on tensors without values."""

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
    """Number of elements per token between the first and the last matmul of the feed-forward block. In a mixture, the
    experts that a token is routed to are added up."""
    ffn = step.for_layer(layer).arch.ffn
    return ffn.experts_per_token * ffn.expert_width if layer.mixture else ffn.width


def _dense_saved_bytes(step: TrainingStep, layer: DecoderLayer, width: int) -> float:
    """Bytes per token that a dense feed-forward block saves for backward: results of gate and up, the activation, and
    their product if `down` trains or is adapted. A fused kernel recomputes the activation (Liger Kernel 0.8,
    ops/swiglu.py)."""
    parts = (2 if step.work.fused_kernels else 3) if step.arch.ffn.gated else 2 if step.arch.ffn.quick_gelu else 1
    saved = (
        _new_gelu_saved_bytes(step)
        if step.arch.ffn.new_gelu
        else parts * (4.0 if step.norm_output_fp32 else step.sizes.compute)
    ) * width
    is_shared = step.arch.parallel and step.arch.norms_per_layer == 1 and _attention_saves_input(step, layer)
    saved += saved_input(step, step.arch.hidden, layer.readers, "first half" if is_shared else "norm")
    saved += saved_by_dora(step, (*layer.readers, *layer.down))
    return saved + saved_input(step, width, layer.down[:1], "product")


def _new_gelu_saved_bytes(step: TrainingStep) -> float:
    """Bytes per element that a GELU written out operator by operator saves for backward (transformers,
    NewGELUActivation): the input of the cube, the hyperbolic tangent, and both factors of the last product. Under
    autocast all but one factor are fp32, because autocast computes the cube in fp32."""
    compute = step.sizes.compute
    return 3 * (4.0 if step.work.precision == "amp" else compute) + compute


def _attention_saves_input(step: TrainingStep, layer: DecoderLayer) -> bool:
    """True if attention saves its input for backward, because its own weights train or one of its q, k, v projections
    is adapted."""
    readers = layer.by_role("q", "k", "v", "qkv")
    return not step.trains_adapter or any(step.is_adapted(linear) for linear in readers)


def _separate_experts_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token that routed experts save for backward if experts are separate linear modules. Each chosen expert
    saves the bytes of a dense block, its result, the weighted result (which index_add saves) and two indices. The
    router saves its input and fp32 probabilities."""
    ffn, hidden, experts = step.arch.ffn, step.arch.hidden, layer.routed
    saved = 4.0 * ffn.experts + saved_input(step, hidden, layer.by_role("router"))
    each = _dense_saved_bytes(step, experts, ffn.expert_width) + 2 * step.sizes.compute * hidden + 16.0
    return saved + ffn.experts_per_token * each


def _fused_experts_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token that fused routed experts save for backward: results of both matrices, the activation, and the
    router's fp32 probabilities. Experts that clamp the results of gate and up also save the clamped results and two
    intermediate steps of the gate.

    If the results of experts are added by index_add, the weighted result, three indices and the input of an adapted
    router are saved, too. Experts that train also save the router's input, a copy of this input for each chosen expert,
    and the product that the down matrix reads."""
    ffn, hidden, compute = step.arch.ffn, step.arch.hidden, step.sizes.compute
    choices = ffn.experts_per_token
    parts = (3 if ffn.gated else 2) + (3 if ffn.clamped_swiglu else 0)
    saved = compute * choices * (parts * ffn.expert_width + hidden) + 4.0 * ffn.experts
    if ffn.index_add:
        saved += choices * ((4.0 if step.sizes.autocast_copies else compute) * hidden + 24.0)
    if step.trains_adapter:
        return saved + (saved_input(step, hidden, layer.by_role("router")) if ffn.index_add else 0.0)
    return saved + compute * (choices * (ffn.expert_width + hidden) + hidden)


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
    """Bytes per token that a mixture of experts saves for backward if its router has a norm and scales of its own: the
    bytes saved by the norms of the dense block's result, of the experts' input and of the experts' result, and by the
    router's input, which is normed and scaled twice."""
    hidden, residual_size = step.arch.hidden, step.sizes.residual
    norms = 2 * saved_by_norm(step, hidden, 2) + saved_by_norm(step, hidden, residual_size)
    return (
        norms
        + 4.0 * hidden
        + (0.0 if step.trains_adapter else residual_size * hidden)
        + saved_input(step, hidden, layer.by_role("router"))
    )


def _per_layer_input_saved_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes per token that a layer saves for backward when it adds its per-layer embedding to the hidden state: input
    and result of the gate, the activation, the product of activation and embedding, and the norm of the result. Zero
    for models without per-layer embeddings."""
    width, hidden = step.arch.per_layer_input_width, step.arch.hidden
    if not width:
        return 0.0
    saved = 2 * step.sizes.compute * width + saved_input(step, hidden, layer.by_role("input_gate"))
    return saved + saved_input(step, width, layer.by_role("input_out"), "product") + saved_by_norm(step, hidden, 2)


def feed_forward_backward_workspace(step: TrainingStep, layer: DecoderLayer) -> float:
    """Temporary bytes of the feed-forward block's backward pass, per micro batch: the gradients of the product of gate
    and up, of the activation, and of up's result. A fused kernel writes all but the first of these gradients over
    tensors that it saved. If the block's result has a norm, the norm's fp32 temporaries count instead if they are
    larger."""
    hidden, sizes, fused = step.arch.hidden, step.sizes, step.work.fused_kernels
    results = sizes.compute * step.arch.ffn.experts_per_token * hidden if layer.mixture else 0.0
    block = (1.0 if fused and not layer.mixture else 2.0) * sizes.compute * feed_forward_width(step, layer) + results
    if layer.mixture and not layer.experts:  # expert by expert, each giving the whole block's input a gradient
        block = block / step.arch.ffn.experts + 2 * sizes.residual * hidden
    norm = 16.0 * hidden if step.arch.norms_per_layer >= 4 and not fused else 0.0
    return step.tokens * (max(block, norm) + sizes.residual * hidden)
