"""Work that the device's memory bounds: norms, activations, rotations, residuals, casts. Seconds of a layer in a micro
batch.

Bytes are counted operator by operator: each reads its inputs and writes its result."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block
from validator.memory.widths import key_width, query_width

from .cost import Cost
from .rates import Rates
from .terms import Term


def elementwise(run: Run, rates: Rates, block: Block) -> Cost:
    """All of a layer but its products and scores."""
    parts = (_norms(run, block), _activation(run, block), _rotation(run, block), _residuals(run), _casts(run, block))
    forward, backward = (sum(part) for part in zip(*parts, strict=True))
    each = run.tokens / rates.bandwidth
    return Cost(Term.ELEMENTWISE, forward * each, backward * each)


def norm(run: Run) -> tuple[float, float]:
    """Bytes for each element of a norm, forward and backward. transformers writes RMSNorm out: to fp32, square, mean,
    product, back, weight (LlamaRMSNorm.forward); LayerNorm and Liger's kernels are one kernel each way."""
    stream = run.sizes.residual
    if run.work.fused_kernels or run.arch.norm in ("layer", "layer_back", "bare"):
        return 2 * stream, 4 * stream
    turned = 2 * (4 + stream) if stream < 4 else 0.0
    return turned + 20 + 2 * stream, turned + 40 + 3 * stream


def _norms(run: Run, block: Block) -> tuple[float, float]:
    attn, (forward, backward) = run.arch.attn, norm(run)
    width = run.arch.norms_per_layer * run.arch.hidden
    if block.attends and (attn.head_norms or attn.whole_norms):
        width += query_width(attn) + key_width(attn)
    return width * forward, width * backward


def _activation(run: Run, block: Block) -> tuple[float, float]:
    """Bytes per token. A gated one is an activation and a product of two, whose gradients are three kernels."""
    ffn, size = run.arch.ffn, run.sizes.compute
    width = (ffn.shared_width + ffn.experts_per_token * ffn.expert_width) if block.mixture else ffn.width
    if run.work.fused_kernels and ffn.gated:
        return 3 * size * width, 5 * size * width
    parts = (5, 9) if ffn.gated or ffn.quick else (2, 3)
    return parts[0] * size * width, parts[1] * size * width


def _rotation(run: Run, block: Block) -> tuple[float, float]:
    """Bytes per token: queries and keys times cosine, halves exchanged, times sine, and their sum (transformers,
    apply_rotary_pos_emb), or one kernel."""
    if not block.attends or run.arch.attn.written:
        return 0.0, 0.0
    width = run.sizes.compute * (query_width(run.arch.attn) + key_width(run.arch.attn))
    passes = 2 if run.work.fused_kernels else 10
    return passes * width, passes * width


def _residuals(run: Run) -> tuple[float, float]:
    """Bytes per token: two sums, and as many of gradients."""
    width = (7.0 if run.arch.dropout else 6.0) * run.sizes.residual * run.arch.hidden
    return width, width


def _casts(run: Run, block: Block) -> tuple[float, float]:
    """Bytes per token: autocast brings an fp32 hidden state to half precision for every module that reads it."""
    sizes = run.sizes
    if sizes.residual <= sizes.compute:
        return 0.0, 0.0
    readers = sum(each.number for each in block.linears if each.inputs == run.arch.hidden and not each.routed)
    width = readers * (sizes.residual + sizes.compute) * run.arch.hidden
    return width, width
