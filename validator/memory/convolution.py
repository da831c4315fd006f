"""What a gated short convolution keeps for its backward pass, and what that pass needs. Bytes of a micro batch.

Counted on what autograd saves in transformers, models/lfm2/modeling_lfm2.py, Lfm2ShortConv, whether or not
causal-conv1d computes it; checked against validator/simulate.
"""

from __future__ import annotations

from .inputs import input_kept, magnitudes
from .run import Run
from .shapes import Block


def kept(run: Run, block: Block) -> float:
    """The three parts of the input, the first product, and the convolution's result."""
    hidden, readers, out = run.arch.hidden, block.by_role("in"), block.by_role("out")
    per_token = input_kept(run, hidden, readers) + magnitudes(run, (*readers, *out))
    per_token += input_kept(run, hidden, out, "product")
    return run.tokens * (per_token + 5 * run.sizes.compute * hidden)


def peak(run: Run) -> float:
    """Gradients of the result, of both products and their factors."""
    return run.tokens * run.arch.hidden * (6 * run.sizes.compute + run.sizes.residual)
