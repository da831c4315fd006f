"""What lightning attention keeps for its backward pass, and what that pass needs. Bytes of a micro batch.

Counted on what autograd saves in transformers, models/minimax/modeling_minimax.py, MiniMaxLightningAttention, which
takes no kernels; checked against validator/simulate.
"""

from __future__ import annotations

from .inputs import input_kept, magnitudes, norm_kept
from .mixers import Lightning
from .run import Run
from .shapes import Block


def _core(run: Run, lightning: Lightning) -> float:
    """Bytes per token between the linear modules: queries, keys and values before and after their activation, values
    without those of padding, the gate and what it scales, a square of each chunk and head, its state, and decayed
    queries of all chunks but the first and keys of all but the last."""
    chunk = min(lightning.chunk, run.work.length)
    fading = 2 * lightning.width * (1 - 1 / -(-run.work.length // chunk))
    squares, states = chunk * lightning.heads, lightning.width * lightning.head_dim / chunk
    return run.sizes.compute * (9 * lightning.width + fading + squares + states)


def kept(run: Run, block: Block, lightning: Lightning) -> float:
    readers, out = block.by_role("in", "in_gate"), block.by_role("out")
    per_token = input_kept(run, run.arch.hidden, readers) + magnitudes(run, (*readers, *out))
    per_token += input_kept(run, lightning.width, out, "product")
    per_token += norm_kept(run, lightning.width, run.sizes.compute)
    return run.tokens * (per_token + _core(run, lightning))


def peak(run: Run, lightning: Lightning) -> float:
    """Gradients of queries, keys and values, of the result and its gate, and of a chunk's squares."""
    wide = run.sizes.compute * 6 * lightning.width
    return run.tokens * (wide + run.sizes.residual * run.arch.hidden)
