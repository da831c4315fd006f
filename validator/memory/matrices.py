"""The matrices of a layer as its passes meet them, and what is made of them for a moment. Bytes where said."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from .precision import element_bytes
from .shapes import Block, Linear
from .workload import Workload


def elements(linears: Iterable[Linear]) -> int:
    return sum(linear.elements for linear in linears)


def largest(linears: Iterable[Linear]) -> int:
    return max((linear.inputs * linear.outputs for linear in linears), default=0)


class Halves(NamedTuple):
    """The linear modules of a layer in the order of its backward pass: feed-forward output and inputs, attention."""

    down: tuple[Linear, ...]
    readers: tuple[Linear, ...]
    attention: tuple[Linear, ...]


@lru_cache(maxsize=512)
def halves(block: Block) -> Halves:
    down = tuple(linear for linear in block.linears if linear.role == "down")
    readers = tuple(linear for linear in block.linears if linear.role in ("gate", "up", "gate_up"))
    others = tuple(linear for linear in block.linears if linear not in (*down, *readers))
    return Halves(down, readers, others)


def dequantized(linears: Iterable[Linear], workload: Workload) -> float:
    """Bytes of the largest matrix in compute precision, rebuilt for its product and dropped again."""
    return 2.0 * largest(linears) if workload.quant_bits else 0.0


def normed(block: Block, workload: Workload) -> float:
    """Bytes that DoRA needs to take the norm of an adapted matrix: an identity matrix of its inputs, with a copy in
    compute precision, from which the adapter's product is made; the product and the scaled product; the base's matrix
    and the sum in the adapter's precision (peft, tuners/lora/dora.py)."""
    if not workload.adapter.dora or workload.method != "lora":
        return 0.0
    sizes = element_bytes(workload)
    made = sizes.compute if workload.precision == "amp" else sizes.adapter
    identity = sizes.adapter + (made if made < sizes.adapter else 0.0)
    copied = sizes.adapter if workload.quant_bits or sizes.base != sizes.adapter else 0.0
    matrix = copied + sizes.adapter + 2 * made
    adapted = [linear for linear in block.linears if linear.role in workload.adapter.targets]
    return max(
        (linear.inputs * (identity * linear.inputs + matrix * linear.outputs) for linear in adapted), default=0.0
    )
