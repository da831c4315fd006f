"""Layers whose keys and values are made of what towers give (transformers, models/mllama/modeling_mllama.py).
Bytes of a micro batch.

A mask says which token sees which tile, so the keys are repeated for every head and the memory-efficient kernel is
taken. Checked operator by operator against validator/simulate."""

from __future__ import annotations

from .inputs import input_kept, norm_kept
from .run import Run
from .shapes import Block
from .widths import key_width, output_width, query_width, value_width


def _seen(run: Run) -> int:
    """Tower tokens of a micro batch."""
    of_sequence = sum(encoding.tokens for encoding in run.work.encodings)
    return of_sequence * run.work.micro_batch * run.work.sequences_per_sample


def kept(run: Run, block: Block) -> float:
    """Of a layer: by tokens of the sequence, and by those of the towers."""
    attn, hidden, compute = run.arch.attn, run.arch.hidden, run.sizes.compute
    queries, output = query_width(attn), output_width(attn)
    written = input_kept(run, hidden, block.by_role("q")) + norm_kept(run, queries, 2)
    written += (
        compute * (queries + output) + 4.0 * attn.heads + input_kept(run, output, block.by_role("o"), "attention")
    )
    read = input_kept(run, hidden, block.by_role("k", "v"), "product") + norm_kept(run, key_width(attn), 2)
    return run.tokens * written + _seen(run) * (read + 2 * compute * queries)


def peak(run: Run) -> float:
    """Transients of its backward pass: gradients of queries, keys, values and the output, and an fp32 accumulator."""
    attn, compute = run.arch.attn, run.sizes.compute
    queries = query_width(attn)
    written = compute * (queries + output_width(attn)) + 2 * run.sizes.residual * run.arch.hidden + 4.0 * queries
    return run.tokens * written + _seen(run) * compute * (2 * queries + key_width(attn) + value_width(attn))


def states(run: Run) -> float:
    """What the towers give, which stays for all layers."""
    return run.sizes.compute * _seen(run) * run.arch.hidden if run.arch.crosses else 0.0


def mask(run: Run) -> float:
    """Of each token for each that the towers give."""
    return run.sizes.compute * _seen(run) * run.work.length if run.arch.crosses else 0.0
