"""Half-precision copies of trained weights, which autocast makes and caches until the forward pass ends."""

from __future__ import annotations

from functools import lru_cache

from .parameters import adapter_elements
from .run import Run
from .shapes import Block


def cast_elements(run: Run, block: Block) -> float:
    """Elements of one layer's trained matrices that autocast copies to half precision."""
    if run.sizes.casts:
        return block.matrices
    if run.work.precision == "amp" and run.adapts:
        return sum(adapter_elements(linear, run.work) for linear in block.linears)
    return 0.0


@lru_cache(maxsize=64)
def layer_casts(run: Run) -> float:
    """Bytes of the copies of all the layers' trained matrices. Those of views die with their layer's results."""
    if run.arch.recast and run.sizes.casts and run.checkpointing != "off":
        return 0.0
    return 2.0 * sum(number * cast_elements(run, block) for number, block in run.visited)


def head_cast(run: Run) -> float:
    """Bytes of the copy of a trained output layer, which its backward pass still needs."""
    casts_head = run.sizes.casts and run.work.method == "full"
    return 2.0 * run.head if casts_head or (run.work.adapter.full_head and run.work.precision == "amp") else 0.0
