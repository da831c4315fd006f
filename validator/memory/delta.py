"""What a gated delta net keeps for its backward pass, and what that pass needs. Bytes of a micro batch.

Without flash-linear-attention and causal-conv1d, which LLaMA-Factory does not ask for, transformers computes it with
torch's own operators, in chunks of 64 tokens and fp32 (models/qwen3_5/modeling_qwen3_5.py,
torch_chunk_gated_delta_rule). Counted on what autograd saves there, checked against validator/simulate.
"""

from __future__ import annotations

from .inputs import input_kept, magnitudes
from .mixers import Delta
from .run import Run
from .shapes import Block

CHUNK = 64
# The inverse of a chunk's triangle is made row by row, and each step keeps its row and all above it, in fp32.
_STEPS = 4.0 * sum(row * row + row for row in range(CHUNK)) / CHUNK


def _repeated(delta: Delta) -> int:
    """Elements per token of the keys, one head for each of the values."""
    return delta.value_heads * delta.key_dim


def _core(run: Run, delta: Delta) -> float:
    """Bytes per token between the linear modules. Under autocast products keep half-precision copies of fp32
    factors, so that states are kept twice."""
    mixed = run.work.precision == "amp"
    values, keys, compute = delta.value_width, delta.key_width, run.sizes.compute
    squares = CHUNK * (18.0 if mixed else 24.0)
    state = (8.0 if mixed else 4.0) * delta.value_heads * delta.key_dim * delta.value_dim / CHUNK
    alike = compute * values if delta.value_heads == delta.key_heads else 0.0
    convolved = 2 * compute * (2 * keys + values)
    inside = (22.0 if mixed else 26.0) * values + 32.0 * _repeated(delta)
    return convolved + inside + alike + delta.value_heads * (_STEPS + squares + 44.0) + state


def _kernels(run: Run, delta: Delta) -> float:
    """Bytes per token that fused kernels keep between the linear modules: the convolution's input and result, keys and
    queries of every head, a copy of the values, a triangle of each chunk, the output and its gate (fla,
    ops/gated_delta_rule/chunk.py, save_for_backward)."""
    values, keys = delta.value_width, delta.key_width
    wide = 2 * (2 * keys + values) + 2 * _repeated(delta) + 3 * values + CHUNK * delta.value_heads
    return run.sizes.compute * wide


def kept(run: Run, block: Block, delta: Delta) -> float:
    readers = block.by_role("in_qkv", "in_z", "in_b", "in_a", "in_qkvz", "in_ba")
    out, values = block.by_role("out"), delta.value_width
    per_token = input_kept(run, run.arch.hidden, readers) + magnitudes(run, (*readers, *out))
    per_token += input_kept(run, values, out, "product")
    if not run.adapts:  # what the norm's weight scales
        per_token += (4.0 if run.work.precision == "amp" else run.sizes.compute) * values
    return run.tokens * (per_token + (_kernels if delta.kernels else _core)(run, delta))


def peak(run: Run, delta: Delta) -> float:
    """Transients of the backward pass: fp32 gradients of queries, keys, values, decayed keys and results of all
    chunks, their sums over chunks in the making, and those of the triangles. Kernels hold what they compute again (what
    a chunk's inverse makes of keys and values, values less what the states hold, the states) and all gradients until
    they end, in half precision (fla, chunk_gated_delta_rule_bwd)."""
    if delta.kernels:
        states = delta.value_heads * delta.key_dim * delta.value_dim / CHUNK
        wide = run.sizes.compute * (5 * _repeated(delta) + 5 * delta.value_width + 2 * states)
        return run.tokens * (wide + run.sizes.residual * run.arch.hidden)
    wide = 4.0 * (5 * _repeated(delta) + 4 * delta.value_width)
    return run.tokens * (wide + 8.0 * CHUNK * delta.value_heads + run.sizes.residual * run.arch.hidden)
