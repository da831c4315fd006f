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
# What kernels of a gated delta net move in the backward pass, over the forward: all of it again for what they did not
# keep, and each gradient with what it is made of.
_AGAIN = 2.5
# Kernels of one that fused kernels compute; of a gated delta net without them, for each row of a chunk's triangle and
# for each chunk (transformers, models/qwen3_5/modeling_qwen3_5.py, torch_chunk_gated_delta_rule).
_KERNELS, _ROW, _CHUNK = 12, 6, 12


def mixing(run: Run, rates: Rates, block: Block, mixer: Mixer) -> Cost:
    """Products over tokens or states, and the traffic of what is written."""
    seconds = _products(run, rates, mixer)
    if isinstance(mixer, Delta) and mixer.kernels:
        moved = run.tokens * run.sizes.compute * _fused(mixer) / rates.bandwidth
        return Cost(Term.ATTENTION, seconds + moved, 2 * seconds + _AGAIN * moved)
    moved = kept(run, block, mixer) / rates.bandwidth
    return Cost(Term.ATTENTION, seconds + _FORWARD * moved, 2 * seconds + _BACKWARD * moved)


def _fused(delta: Delta) -> float:
    """Elements per token that the kernels of a gated delta net read and write in the forward pass, those of fp32 twice:
    the convolution with the copy for its layout and its activation, heads repeated and scaled to length one, then each
    chunk's triangle, its inverse, what the inverse makes of keys and values, the states, the results, and the gated
    norm (transformers, models/qwen3_5/modeling_qwen3_5.py; fla, ops/gated_delta_rule/chunk.py)."""
    keys, values = delta.value_heads * delta.key_dim, delta.value_width
    triangle, states = CHUNK * delta.value_heads, delta.value_heads * delta.key_dim * delta.value_dim / CHUNK
    before = 6 * (2 * delta.key_width + values) + 2 * delta.key_width + 6 * keys
    return before + 7 * keys + 9 * values + 7 * triangle + 2 * states


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
