"""What a Mamba layer keeps for its backward pass, and what that pass needs. Bytes of a micro batch.

Without mamba-ssm and causal-conv1d, which LLaMA-Factory does not ask for, transformers computes it token by token with
torch's own operators, and keeps the state of every channel at every token (models/jamba/modeling_jamba.py,
slow_forward). Counted on what autograd saves there, checked against validator/simulate.
"""

from __future__ import annotations

from .inputs import input_kept, magnitudes, norm_kept
from .mixers import Scan
from .run import Run
from .shapes import Block

_FP32 = 4.0


def _states(scan: Scan) -> float:
    """Bytes per token of a number for each state, in fp32."""
    return _FP32 * scan.width * scan.state


def _core(run: Run, scan: Scan) -> float:
    """Bytes per token between the linear modules: both results of the first, those of the convolution and of the step
    in time before and after their activations, the scan's and the gate's, the values in fp32; of each state its decay,
    what enters it and itself, which the product that reads it casts."""
    compute = run.sizes.compute
    cast = compute * scan.width * scan.state if compute < _FP32 else 0.0
    return (7 * compute + _FP32) * scan.width + 3 * _states(scan) + cast


def _kernels(run: Run, scan: Scan) -> float:
    """Bytes per token that the kernels keep: both results of the first linear module, and of the convolution, the step
    in time and the scan one (mamba-ssm 2.2, ops/selective_scan_interface.py, SelectiveScanFn)."""
    return 6 * run.sizes.compute * scan.width


def kept(run: Run, block: Block, scan: Scan) -> float:
    first, selecting, step, out = (block.by_role(role) for role in ("in", "x", "dt", "out"))
    per_token = input_kept(run, run.arch.hidden, first) + magnitudes(run, (*first, *selecting, *step, *out))
    per_token += input_kept(run, scan.width, selecting, "product") + input_kept(run, scan.rank, step)
    per_token += input_kept(run, scan.width, out, "product")
    per_token += norm_kept(run, scan.rank + 2 * scan.state, run.sizes.compute)
    return run.tokens * (per_token + (_kernels if scan.kernels else _core)(run, scan))


def peak(run: Run, scan: Scan) -> float:
    """Transients of the backward pass: for every state a gradient of its decay and of what enters it, and of one token
    among them, as wide as all; with the kernels those of what they read and give."""
    gradients = run.sizes.residual * run.arch.hidden + 6 * run.sizes.compute * scan.width
    return run.tokens * (gradients + (0.0 if scan.kernels else 3 * _states(scan)))
