"""Gated delta nets, whose time is linear in the length. Seconds of a micro batch in one layer."""

from __future__ import annotations

from validator.memory.delta import CHUNK, kept
from validator.memory.run import Run
from validator.memory.shapes import Block, Delta

from .cost import Cost
from .rates import Rates
from .terms import Term

# What is kept for the backward pass is written once and read about as often by what follows; gradients twice that.
_FORWARD, _BACKWARD = 2.5, 5.0


def recurrence(run: Run, rates: Rates, block: Block, delta: Delta) -> Cost:
    """Products of each chunk's tokens with each other and with the state (arXiv 2412.06464), and the traffic of what
    torch's own operators write."""
    pairs = CHUNK * (2 * delta.key_dim + 2 * delta.value_dim) + 4 * delta.key_dim * delta.value_dim
    seconds = 2.0 * run.tokens * delta.value_heads * pairs / rates.compute(run.sizes.compute if delta.kernels else 4)
    moved = kept(run, block, delta) / rates.bandwidth
    return Cost(Term.ATTENTION, seconds + _FORWARD * moved, 2 * seconds + _BACKWARD * moved)
