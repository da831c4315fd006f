"""What norms and linear modules keep of their inputs for the backward pass. Bytes per token.

Derived from the operators' own rules: autograd keeps a linear module's input only if the weight trains; norms work on
an fp32 copy. Checked operator by operator against validator/simulate.
"""

from __future__ import annotations

from .run import Run
from .shapes import Linear


def norm_kept(run: Run, width: int, entering: float, gemma: bool = False) -> float:
    """The fp32 input, and the normalized value if the norm's weight trains; a fused kernel keeps its input as it is
    (Liger Kernel 0.8, ops/rms_norm.py). `entering`: bytes per element of the input."""
    if run.arch.norm_bias:  # LayerNorm, whose kernel keeps its input, which autocast raises to fp32
        return width * (4.0 if run.work.precision == "amp" else entering)
    if run.work.fused_kernels:
        return width * entering
    normalized = 0.0 if run.adapts else 4.0 if gemma else entering
    return width * (4.0 + normalized)


def half_norms(run: Run) -> float:
    """Half a layer's norms: one on the hidden state, and with four a layer one on the result too."""
    gemma, hidden = run.arch.norms_per_layer == 4, run.arch.hidden
    before = norm_kept(run, hidden, run.sizes.residual, gemma)
    return before + (norm_kept(run, hidden, 2, gemma) if gemma else 0.0)


def shares_inputs(run: Run) -> bool:
    """Whether a module keeps its input as it is, in compute precision, so that another keeper costs nothing."""
    if not run.adapts:
        return True
    same = run.sizes.adapter == run.sizes.compute or (run.work.quant_bits > 0 and run.work.precision == "amp")
    return same and not run.work.adapter.dropout


def _adapted_input(run: Run, width: int, modules: int) -> float:
    """What `modules` adapted modules keep of one shared input of `width`.

    Under autocast each casts to the adapter's fp32 and back: a half-precision copy each. Without autocast the fp32 copy
    itself is kept. bitsandbytes modules and half-precision adapters share the input as it is."""
    if modules == 0:
        return 0.0
    if shares_inputs(run):
        return run.sizes.compute * width
    masks = float(modules * width) if run.work.adapter.dropout else 0.0
    each = run.sizes.compute if run.work.precision == "amp" else run.sizes.adapter
    return modules * each * width + masks


def input_kept(
    run: Run, width: int, readers: tuple[Linear, ...], produced_half: bool = False, elsewhere: bool = False
) -> float:
    """Kept as input of linear modules that read the same tensor. `produced_half`: it is already in compute precision.
    `elsewhere`: another operator keeps it as it is, which the caller counts."""
    sizes, work = run.sizes, run.work
    if not run.adapts:
        copies = len(readers) if sizes.casts and not produced_half else 1
        return copies * sizes.compute * width
    adapted = sum(linear.role in work.adapter.targets for linear in readers)
    inner = sizes.compute if work.precision == "amp" else sizes.adapter
    low_rank = work.adapter.rank * inner * adapted if work.method == "lora" else 0.0
    eight = 0.0 if elsewhere else _kept_by_8bit(run, width, adapted)
    return _adapted_input(run, width, adapted) + low_rank + eight


def _kept_by_8bit(run: Run, width: int, adapted: int) -> float:
    """The input that 8-bit products keep although their weight is frozen (bitsandbytes, MatMul8bitLt), where no
    adapter keeps the same tensor."""
    shared = adapted > 0 and shares_inputs(run)
    eight = run.work.quant_bits == 8 and not run.work.quant_grouped
    return run.sizes.compute * width if eight and not shared else 0.0


def magnitudes(run: Run, linears: tuple[Linear, ...]) -> float:
    """What DoRA's magnitudes add: they scale the base's and the adapter's result, so both are kept."""
    adapter = run.work.adapter
    if not adapter.dora:
        return 0.0
    return 2 * run.sizes.compute * sum(linear.outputs for linear in linears if linear.role in adapter.targets)
