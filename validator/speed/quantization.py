"""Weights made whole from few bits, for each product anew. Seconds of one pass through a layer."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .rates import Rates
from .terms import Term

# Of the attained bandwidth, what kernels that dequantize reach: litgpt on an A10G takes 17 ns longer for
# 1000 weights in each pass with 4 bits than without (five pairs of its config hub, 14 to 26 ns).
_SHARE = 0.3


def quantization(run: Run, rates: Rates, block: Block) -> Cost:
    """Reads few bits and writes compute precision, in the forward and in the backward pass."""
    bits = run.work.quant_bits
    if not bits:
        return Cost(Term.QUANTIZATION, 0.0, 0.0)
    moved = block.linear_elements * (bits / 8 + run.sizes.compute) / (_SHARE * rates.bandwidth)
    return Cost(Term.QUANTIZATION, moved, moved)
