"""What layers have in place of attention, or beside it, whose time is linear in the length. Seconds of a layer in a
micro batch."""

from __future__ import annotations

from validator.memory.delta import CHUNK
from validator.memory.mixers import Delta, Lightning, Mixer
from validator.memory.mixing import kept
from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .rates import Rates
from .terms import Term

# What is kept for the backward pass is written once and read about as often by what follows; gradients twice that.
_FORWARD, _BACKWARD = 2.5, 5.0
# Kernels of one that fused kernels compute; of a gated delta net without them, for each row of a chunk's triangle and
# for each chunk (transformers, models/qwen3_5/modeling_qwen3_5.py, torch_chunk_gated_delta_rule).
_KERNELS, _ROW, _CHUNK = 12, 6, 12


def mixing(run: Run, rates: Rates, block: Block, mixer: Mixer) -> Cost:
    """Products over tokens or states, and the traffic of what is written."""
    seconds = _products(run, rates, mixer)
    moved = kept(run, block, mixer) / rates.bandwidth
    return Cost(Term.ATTENTION, seconds + _FORWARD * moved, 2 * seconds + _BACKWARD * moved)


def _products(run: Run, rates: Rates, mixer: Mixer) -> float:
    """Of each chunk's tokens with each other and with the state (arXiv 2412.06464, arXiv 2401.04658); of a gated delta
    net in fp32 without kernels."""
    match mixer:
        case Delta():
            pairs = CHUNK * (2 * mixer.key_dim + 2 * mixer.value_dim) + 4 * mixer.key_dim * mixer.value_dim
            heads, each = mixer.value_heads, run.sizes.compute if mixer.kernels else 4.0
        case Lightning():
            pairs = 2 * mixer.head_dim * (mixer.chunk + mixer.head_dim)
            heads, each = mixer.heads, run.sizes.compute
        case _:
            return 0.0
    return 2.0 * run.tokens * heads * pairs / rates.compute(each)


def kernels(run: Run, mixer: Mixer) -> float:
    """How many kernels of a layer it starts in the forward pass."""
    if isinstance(mixer, Delta) and not mixer.kernels:
        return _KERNELS + _ROW * CHUNK + _CHUNK * run.work.length / CHUNK
    if isinstance(mixer, Lightning):
        return _KERNELS + _CHUNK * run.work.length / mixer.chunk
    return _KERNELS
