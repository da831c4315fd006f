"""What a layer's feed-forward block keeps for its backward pass, and what that pass needs. Bytes of a micro batch.

Derived from the operators' own rules: a product keeps both factors. Checked operator by operator against
validator/simulate.
"""

from __future__ import annotations

from .inputs import dropped, half_norms, input_kept, magnitudes, norm_kept
from .run import Run
from .shapes import Block


def width(run: Run, block: Block) -> int:
    """Elements per token between the two products of the block."""
    ffn = run.of(block).arch.ffn
    return ffn.experts_per_token * ffn.expert_width if block.mixture else ffn.width


def _dense(run: Run, block: Block, width: int) -> float:
    """Bytes per token: results of gate and up, the activation, and their product if `down` trains or is adapted. A
    fused kernel makes the activation again (Liger Kernel 0.8, ops/swiglu.py)."""
    parts = (2 if run.work.fused_kernels else 3) if run.arch.ffn.gated else 2 if run.arch.ffn.quick else 1
    kept = (_steps(run) if run.arch.ffn.stepwise else parts * (4.0 if run.raised else run.sizes.compute)) * width
    alike = run.arch.parallel and run.arch.norms_per_layer == 1 and _attention_reads(run, block)
    kept += input_kept(run, run.arch.hidden, block.readers, "first half" if alike else "norm")
    kept += magnitudes(run, (*block.readers, *block.down))
    return kept + input_kept(run, width, block.down[:1], "product")


def _steps(run: Run) -> float:
    """Bytes per element of an activation that is written out (transformers, NewGELUActivation): what is cubed, the
    hyperbolic tangent, and both factors. Under autocast all but one factor are fp32, as cubing is."""
    compute = run.sizes.compute
    return 3 * (4.0 if run.work.precision == "amp" else compute) + compute


def _attention_reads(run: Run, block: Block) -> bool:
    """Whether attention keeps what it reads: its own weights train, or it is adapted."""
    readers = block.by_role("q", "k", "v", "qkv")
    return not run.adapts or any(linear.role in run.work.adapter.targets for linear in readers)


def _separate_experts(run: Run, block: Block) -> float:
    """Bytes per token of routed experts that are linear modules: for each chosen expert what a dense block keeps, its
    result, the weighted result, which adding up by index keeps, and two indices; the router's input and fp32
    probabilities."""
    ffn, hidden, routed = run.arch.ffn, run.arch.hidden, block.routed
    kept = 4.0 * ffn.experts + input_kept(run, hidden, block.by_role("router"))
    each = _dense(run, routed, ffn.expert_width) + 2 * run.sizes.compute * hidden + 16.0
    return kept + ffn.experts_per_token * each


def _experts(run: Run, block: Block) -> float:
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
        return kept + (input_kept(run, hidden, block.by_role("router")) if ffn.indexed else 0.0)
    return kept + compute * (chosen * (ffn.expert_width + hidden) + hidden)


def feedforward_kept(run: Run, block: Block) -> float:
    ffn = run.arch.ffn
    per_token = half_norms(run, second=True) + dropped(run)
    if block.mixture:
        per_token += _experts(run, block) if block.experts else _separate_experts(run, block)
        if ffn.shared_width:
            per_token += _dense(run, block.unrouted, ffn.shared_width)
            per_token += run.sizes.compute * run.arch.hidden if ffn.shared_gate else 0.0  # the result that is gated
        per_token += _scaled_router(run, block) if ffn.router_scaled else 0.0
    else:
        per_token += _dense(run, block, ffn.width)
    return run.tokens * (per_token + _layer_input(run, block))


def _scaled_router(run: Run, block: Block) -> float:
    """Bytes per token of the norms of a dense block's result, of what the experts read and of what they give, and of
    the router's input, normed and twice scaled."""
    hidden, made = run.arch.hidden, run.sizes.residual
    normed = 2 * norm_kept(run, hidden, 2) + norm_kept(run, hidden, made)
    return (
        normed
        + 4.0 * hidden
        + (0.0 if run.adapts else made * hidden)
        + input_kept(run, hidden, block.by_role("router"))
    )


def _layer_input(run: Run, block: Block) -> float:
    """Bytes per token of what a layer does with an embedding of its own: the gate's input and result, the activation,
    the product, and the norm of what is added."""
    width, hidden = run.arch.layer_input, run.arch.hidden
    if not width:
        return 0.0
    kept = 2 * run.sizes.compute * width + input_kept(run, hidden, block.by_role("input_gate"))
    return kept + input_kept(run, width, block.by_role("input_out"), "product") + norm_kept(run, hidden, 2)


def feedforward_peak(run: Run, block: Block) -> float:
    """Transients of the feed-forward backward: gradients of product, activation and up while the product is freed, of
    which a fused kernel writes all but the first over what it kept; or the fp32 temporaries of a norm on the block's
    result."""
    hidden, sizes, fused = run.arch.hidden, run.sizes, run.work.fused_kernels
    chosen = sizes.compute * run.arch.ffn.experts_per_token * hidden if block.mixture else 0.0
    inside = (1.0 if fused and not block.mixture else 2.0) * sizes.compute * width(run, block) + chosen
    if block.mixture and not block.experts:  # expert by expert, each giving the whole block's input a gradient
        inside = inside / run.arch.ffn.experts + 2 * sizes.residual * hidden
    norm = 16.0 * hidden if run.arch.norms_per_layer >= 4 and not fused else 0.0
    return run.tokens * (max(inside, norm) + sizes.residual * hidden)
