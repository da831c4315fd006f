"""Kernels that the processor must start. Seconds of a micro batch in one layer.

A device that ends kernels sooner than Python starts them waits: small models and micro batches are bound by this."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .experts import active
from .terms import Term

# Seconds to start a kernel from Python in the forward pass, and from autograd's engine in the backward pass: Qwen's
# README, whose 1.8B and 7B take no less for 256 tokens than for 512 on an A100.
_FORWARD, _BACKWARD = 18e-6, 11e-6
# Kernels of one norm, of one rotation, of activation, residuals and attention, forward.
_NORM, _ROTATION, _OTHERS = 6, 10, 8
# Making quantized weights whole, in Python for the most part (bitsandbytes, autograd/_functions.py). An adapter's: two
# products, casts, dropout, scale and sum. A routed expert's beside its products: its tokens chosen, gathered and added.
_QUANTIZED, _ADAPTER, _EXPERT = {4: 4, 8: 25}, 7, 8


def launches(run: Run, block: Block) -> Cost:
    """Starting all kernels of a layer; the backward pass has about two for each."""
    number = _kernels(run, block)
    return Cost(Term.LAUNCHES, _FORWARD * number, 2 * _BACKWARD * number)


def _kernels(run: Run, block: Block) -> float:
    arch, work = run.arch, run.work
    per_norm = 1 if work.fused_kernels or arch.norm in ("layer", "layer_back", "bare") else _NORM
    norms = arch.norms_per_layer + (2 if arch.attn.head_norms or arch.attn.whole_norms else 0)
    plain = [each for each in block.linears if not each.routed]
    casts = run.sizes.residual > run.sizes.compute or run.sizes.casts
    each = 1 + int(casts) + _QUANTIZED.get(work.quant_bits, 0)
    number: float = _OTHERS + norms * per_norm + (2 if work.fused_kernels else _ROTATION) + each * len(plain)
    number += _ADAPTER * sum(map(run.adapted, plain))
    if block.mixer:
        from .mixing import kernels  # which few models have

        number += kernels(run, block.mixer)
    return number + (_expert_kernels(run, block) if block.mixture else 0.0)


def _expert_kernels(run: Run, block: Block) -> float:
    """Fused experts are one grouped product each (transformers 5, integrations/moe.py); separate ones go one by one."""
    if run.work.experts_fused:
        return 25.0
    adapted = sum(run.adapted(each) for each in block.linears if each.routed)
    return active(run) * (_EXPERT + 4 + _ADAPTER * adapted)
