"""What one micro batch costs a device in the forward and in the backward pass. Seconds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from validator.memory.run import Run

from .device import Device
from .terms import Term

# Of the published rate, what products of a training step reach. Median model FLOPs over 208 A100 rows and 87 H100 rows
# of mosaicml/llm-foundry and of fms-acceleration is 0.41 and 0.48, of which checkpointing takes a quarter.
_SHARE = 0.5


class Cost(NamedTuple):
    """Seconds of a micro batch that one term takes; recomputation is part of the backward pass."""

    term: Term
    forward: float
    backward: float


class Passes(NamedTuple):
    """All costs of one micro batch on one device, in which traffic may hide."""

    costs: tuple[Cost, ...]

    @property
    def forward(self) -> float:
        return sum(cost.forward for cost in self.costs)

    @property
    def backward(self) -> float:
        return sum(cost.backward for cost in self.costs)


def _costs(run: Run, device: Device) -> Iterator[Cost]:
    rate = _SHARE * device.attained * (device.single if run.sizes.compute == 4 else device.half)
    inside = 2.0 * run.tokens * sum(number * block.matrices for number, block in run.layers) / rate
    visited = 2.0 * run.tokens * sum(number * block.matrices for number, block in run.visited) / rate
    head = 2.0 * run.tokens * run.head / rate
    weights = 0.0 if run.adapts else visited
    yield Cost(Term.PRODUCTS, inside, visited + weights)
    yield Cost(Term.RECOMPUTATION, 0.0, 0.0 if run.checkpointing == "off" else visited)
    yield Cost(Term.HEAD, head, head * (2 if run.trains_head else 1))


@lru_cache(maxsize=64)
def passes(run: Run, device: Device) -> Passes:
    """Costs of one micro batch on this device."""
    return Passes(tuple(_costs(run, device)))
