"""What is made of a layer's matrices for a moment. Bytes."""

from __future__ import annotations

from collections.abc import Iterable

from .linear import Linear
from .run import Run
from .shapes import Block


def elements(linears: Iterable[Linear]) -> int:
    return sum(linear.elements for linear in linears)


def largest(linears: Iterable[Linear]) -> int:
    """Elements of the largest matrix."""
    return max((linear.inputs * linear.outputs for linear in linears), default=0)


def dequantized(run: Run, linears: Iterable[Linear]) -> float:
    """The largest matrix in compute precision, rebuilt for its product and dropped again."""
    return 2.0 * largest(linears) if run.work.quant_bits else 0.0


def normed(run: Run, block: Block) -> float:
    """What DoRA needs to take the norm of an adapted matrix: an identity matrix of its inputs, with a copy in compute
    precision, from which the adapter's product is made; the product and the scaled product; the base's matrix and the
    sum in the adapter's precision (peft, tuners/lora/dora.py)."""
    work, sizes = run.work, run.sizes
    if not work.adapter.dora or work.method != "lora":
        return 0.0
    made = sizes.compute if work.precision == "amp" else sizes.adapter
    identity = sizes.adapter + (made if made < sizes.adapter else 0.0)
    copied = sizes.adapter if work.quant_bits or sizes.base != sizes.adapter else 0.0
    matrix = copied + sizes.adapter + 2 * made
    adapted = block.by_role(*work.adapter.targets)
    return max((each.inputs * (identity * each.inputs + matrix * each.outputs) for each in adapted), default=0.0)
