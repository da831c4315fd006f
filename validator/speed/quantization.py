"""Weights made whole from few bits, for each product anew. Seconds of one pass through a layer."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .rates import Rates
from .terms import Term

# Weights made whole in a second: the kernels are bound by instructions, not by memory (bitsandbytes, pull request 1747,
# which halves the time on A100 and H100). Packed and short runs of fms-acceleration on A100 give 0.7e11 to 1.2e11,
# litgpt's config hub on A10G 0.6e11.
_RATE = 1.0e11


def quantization(run: Run, rates: Rates, block: Block) -> Cost:
    """Reads few bits and writes compute precision, in the forward and in the backward pass."""
    bits = run.work.quant_bits
    if not bits:
        return Cost(Term.QUANTIZATION, 0.0, 0.0)
    if bits == 8:
        return _integers(run, rates, block)
    moved = block.linear_elements * (bits / 8 + run.sizes.compute) / rates.bandwidth
    once = block.linear_elements / _RATE + moved
    return Cost(Term.QUANTIZATION, once, once)


def _integers(run: Run, rates: Rates, block: Block) -> Cost:
    """LLM.int8() (arXiv 2208.07339): inputs are brought to 8 bits by row and by column and their outliers taken out,
    results come as 32 bits; the backward pass makes the weights whole."""
    moved = sum(each.number * (12 * each.inputs + 10 * each.outputs) for each in block.linears) * run.tokens
    whole = block.linear_elements / _RATE
    return Cost(Term.QUANTIZATION, moved / rates.bandwidth + whole, whole)
