"""Scores of pairs of tokens. Seconds of a micro batch in one layer.

Each pair costs a product of queries and keys and one of scores and values; the backward pass makes five such products
where the forward pass makes two (FlashAttention, arXiv 2205.14135)."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block
from validator.memory.widths import output_width, query_width

from .cost import Cost
from .rates import Rates
from .terms import Term

# Of what products attain: FlashAttention-2 reaches 73 % of an A100's rate forward and 63 % backward at a head of 128
# (arXiv 2307.08691); PyTorch's memory-efficient kernel, which takes masks, about half of that.
_FLASH, _MASKED = (0.80, 0.70), (0.45, 0.30)
# Bytes moved for each pair and head where scores are written out (transformers, eager_attention_forward): product,
# mask, softmax in fp32 and its cast, dropout, product; backward the same read and written for gradients.
_WRITTEN, _WRITTEN_BACKWARD = 26.0, 34.0


def attention(run: Run, rates: Rates, block: Block) -> Cost:
    """What stands between the projections of a layer."""
    mixed = scored = Cost(Term.ATTENTION, 0.0, 0.0)
    if block.mixer:
        from .mixing import mixing  # which few models have

        mixed = mixing(run, rates, block, block.mixer)
    if block.attends:
        scored = _scores(run, rates)
    return Cost(Term.ATTENTION, mixed.forward + scored.forward, mixed.backward + scored.backward)


def _scores(run: Run, rates: Rates) -> Cost:
    attn = run.arch.attn
    widths = query_width(attn) + output_width(attn)
    masked = run.work.attention == "sdpa" and (run.work.padded or attn.masked or attn.crossed)
    pairs = run.tokens * _seen(run, whole=masked or run.attends_in_squares)
    seconds = 2.0 * pairs * widths / rates.compute(run.sizes.compute)
    if run.attends_in_squares:
        squares = pairs * attn.heads / rates.bandwidth
        return Cost(Term.ATTENTION, seconds + _WRITTEN * squares, 2 * seconds + _WRITTEN_BACKWARD * squares)
    if masked:  # by kernels of the first generation everywhere
        return Cost(Term.ATTENTION, seconds / _MASKED[0], 2.5 * seconds / _MASKED[1])
    forward, backward = (rates.attention * share for share in _FLASH)
    return Cost(Term.ATTENTION, seconds / forward, 2.5 * seconds / backward)


def _seen(run: Run, whole: bool) -> float:
    """Tokens that one attends to: those of towers where layers read them; a kernel without a mask skips what comes
    later, and what lies outside the window of the layers that have one."""
    length, attn = float(run.work.length), run.arch.attn
    if attn.crossed:
        return float(sum(encoding.tokens for encoding in run.work.encodings))
    if whole:
        return length
    near = min(length, attn.window) if attn.window else length
    share = attn.window_share if attn.window else 0.0
    return share * near * (1 - near / (2 * length)) + (1 - share) * length / 2
