"""What a Mamba-2 layer keeps for its backward pass, and what that pass needs. Bytes of a micro batch.

Without mamba-ssm and causal-conv1d, which LLaMA-Factory does not ask for, transformers computes it with torch's own
operators, in chunks of tokens and fp32 (models/granitemoehybrid/modeling_granitemoehybrid.py, torch_forward).
Counted on what autograd saves there, checked against validator/simulate.
"""

from __future__ import annotations

from .inputs import input_kept, magnitudes
from .mixers import StateSpace
from .run import Run
from .shapes import Block

_FP32 = 4.0


def _chunks(run: Run, space: StateSpace) -> int:
    return -(-run.work.length // space.chunk)


def _padded(run: Run, space: StateSpace) -> float:
    """Tokens of all chunks, of which the last may be part empty, for each real one."""
    return _chunks(run, space) * space.chunk / run.work.length


def _core(run: Run, space: StateSpace) -> float:
    """Bytes per token between the linear modules: what goes into and out of the state for each head, three squares of
    each chunk and head, states before and after each chunk, one of which is empty, and the values in five steps."""
    expanded = space.heads * space.state
    squares = space.chunk * space.heads
    states = 2 * expanded * space.head_dim / space.chunk * (1 + 1 / _chunks(run, space))
    values = 3 * space.width + (0 if run.adapts else space.width)
    rest = run.sizes.compute * (space.width + 2 * space.convolved) + 18.0 * space.heads
    return rest + _gated(run, space) + _padded(run, space) * _FP32 * (3 * expanded + 3 * squares + states + values)


def _gated(run: Run, space: StateSpace) -> float:
    """Bytes per token of the gated result; the norm works on fp32 copies, and keeps its result if its weight trains."""
    if not space.normed:
        return (_FP32 + run.sizes.compute) * space.width
    return _FP32 * space.width * (4 if run.adapts else 5)


def _kernels(run: Run, space: StateSpace) -> float:
    """Bytes per token that the fused kernel keeps: the results of the first matrix, and what the second reads
    (mamba-ssm 2.2, ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn)."""
    return run.sizes.compute * (2 * space.width + space.convolved + space.heads)


def kept(run: Run, block: Block, space: StateSpace) -> float:
    readers, out = block.by_role("in"), block.by_role("out")
    per_token = input_kept(run, run.arch.hidden, readers) + magnitudes(run, (*readers, *out))
    per_token += input_kept(run, space.width, out, "product")
    return run.tokens * (per_token + (_kernels if space.kernels else _core)(run, space))


def peak(run: Run, space: StateSpace) -> float:
    """Transients of the backward pass: two gradients of what goes into the state times what comes out, of all pairs of
    a chunk's tokens, before they are summed up; or of each channel's state at each token, where that is more."""
    gradients = run.sizes.residual * run.arch.hidden
    if space.kernels:
        states = 2 * space.heads * space.state * space.head_dim / space.chunk
        wide = run.sizes.compute * (4 * space.width + 2 * space.convolved) + _FP32 * states
        return run.tokens * (wide + gradients)
    pairs = 2 * space.heads * space.state * max(space.chunk, space.head_dim)
    return run.tokens * (_padded(run, space) * _FP32 * pairs + gradients)
