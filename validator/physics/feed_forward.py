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


def feed_forward_width(run: TrainingStep, block: DecoderLayer) -> int:
    """Elements per token between the two products of the block."""
    ffn = run.of(block).arch.ffn
    return ffn.experts_per_token * ffn.expert_width if block.mixture else ffn.width


def _dense_saved_bytes(run: TrainingStep, block: DecoderLayer, width: int) -> float:
    """Bytes per token: results of gate and up, the activation, and their product if `down` trains or is adapted. A
    fused kernel makes the activation again (Liger Kernel 0.8, ops/swiglu.py)."""
    parts = (2 if run.work.fused_kernels else 3) if run.arch.ffn.gated else 2 if run.arch.ffn.quick else 1
    kept = (
        _new_gelu_saved_bytes(run) if run.arch.ffn.stepwise else parts * (4.0 if run.raised else run.sizes.compute)
    ) * width
    alike = run.arch.parallel and run.arch.norms_per_layer == 1 and _attention_saves_input(run, block)
    kept += saved_input(run, run.arch.hidden, block.readers, "first half" if alike else "norm")
    kept += saved_by_dora(run, (*block.readers, *block.down))
    return kept + saved_input(run, width, block.down[:1], "product")


def _new_gelu_saved_bytes(run: TrainingStep) -> float:
    """Bytes per element of an activation that is written out (transformers, NewGELUActivation): what is cubed, the
    hyperbolic tangent, and both factors. Under autocast all but one factor are fp32, as cubing is."""
    compute = run.sizes.compute
    return 3 * (4.0 if run.work.precision == "amp" else compute) + compute


def _attention_saves_input(run: TrainingStep, block: DecoderLayer) -> bool:
    """Whether attention keeps what it reads: its own weights train, or it is adapted."""
    readers = block.by_role("q", "k", "v", "qkv")
    return not run.adapts or any(linear.role in run.work.adapter.targets for linear in readers)


def _separate_experts_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    """Bytes per token of routed experts that are linear modules: for each chosen expert what a dense block keeps, its
    result, the weighted result, which adding up by index keeps, and two indices; the router's input and fp32
    probabilities."""
    ffn, hidden, routed = run.arch.ffn, run.arch.hidden, block.routed
    kept = 4.0 * ffn.experts + saved_input(run, hidden, block.by_role("router"))
    each = _dense_saved_bytes(run, routed, ffn.expert_width) + 2 * run.sizes.compute * hidden + 16.0
    return kept + ffn.experts_per_token * each


def _fused_experts_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    """Bytes per token of routed experts: results of both matrices, the activation, the router's fp32 probabilities;
    clamped ones also the clamped results and the gate in two steps; those added up by index the weighted result and
    three indices, and an adapted router its input; with trained experts also the router's input, its copy for each
    chosen expert, and the product."""
    ffn, hidden, compute = run.arch.ffn, run.arch.hidden, run.sizes.compute
    chosen = ffn.experts_per_token
    parts = (3 if ffn.gated else 2) + (3 if ffn.clamped else 0)
    kept = compute * chosen * (parts * ffn.expert_width + hidden) + 4.0 * ffn.experts
    if ffn.indexed:
        kept += chosen * ((4.0 if run.sizes.casts else compute) * hidden + 24.0)
    if run.adapts:
        return kept + (saved_input(run, hidden, block.by_role("router")) if ffn.indexed else 0.0)
    return kept + compute * (chosen * (ffn.expert_width + hidden) + hidden)


def feed_forward_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    ffn = run.arch.ffn
    per_token = saved_by_half_layer_norms(run, second=True) + saved_dropout_mask(run)
    if block.mixture:
        per_token += (
            _fused_experts_saved_bytes(run, block) if block.experts else _separate_experts_saved_bytes(run, block)
        )
        if ffn.shared_width:
            per_token += _dense_saved_bytes(run, block.unrouted, ffn.shared_width)
            per_token += run.sizes.compute * run.arch.hidden if ffn.shared_gate else 0.0  # the result that is gated
        per_token += _scaled_router_saved_bytes(run, block) if ffn.router_scaled else 0.0
    else:
        per_token += _dense_saved_bytes(run, block, ffn.width)
    return run.tokens * (per_token + _per_layer_input_saved_bytes(run, block))


def _scaled_router_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    """Bytes per token of the norms of a dense block's result, of what the experts read and of what they give, and of
    the router's input, normed and twice scaled."""
    hidden, made = run.arch.hidden, run.sizes.residual
    normed = 2 * saved_by_norm(run, hidden, 2) + saved_by_norm(run, hidden, made)
    return (
        normed
        + 4.0 * hidden
        + (0.0 if run.adapts else made * hidden)
        + saved_input(run, hidden, block.by_role("router"))
    )


def _per_layer_input_saved_bytes(run: TrainingStep, block: DecoderLayer) -> float:
    """Bytes per token of what a layer does with an embedding of its own: the gate's input and result, the activation,
    the product, and the norm of what is added."""
    width, hidden = run.arch.layer_input, run.arch.hidden
    if not width:
        return 0.0
    kept = 2 * run.sizes.compute * width + saved_input(run, hidden, block.by_role("input_gate"))
    return kept + saved_input(run, width, block.by_role("input_out"), "product") + saved_by_norm(run, hidden, 2)


def feed_forward_backward_workspace(run: TrainingStep, block: DecoderLayer) -> float:
    """Transients of the feed-forward backward: gradients of product, activation and up while the product is freed, of
    which a fused kernel writes all but the first over what it kept; or the fp32 temporaries of a norm on the block's
    result."""
    hidden, sizes, fused = run.arch.hidden, run.sizes, run.work.fused_kernels
    chosen = sizes.compute * run.arch.ffn.experts_per_token * hidden if block.mixture else 0.0
    inside = (1.0 if fused and not block.mixture else 2.0) * sizes.compute * feed_forward_width(run, block) + chosen
    if block.mixture and not block.experts:  # expert by expert, each giving the whole block's input a gradient
        inside = inside / run.arch.ffn.experts + 2 * sizes.residual * hidden
    norm = 16.0 * hidden if run.arch.norms_per_layer >= 4 and not fused else 0.0
    return run.tokens * (max(inside, norm) + sizes.residual * hidden)
