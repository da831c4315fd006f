"""What one micro batch costs a device in the forward and in the backward pass. Seconds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import log2
from typing import NamedTuple

from validator.memory.run import Run

from .cost import Cost
from .device import Device
from .head import head
from .layer import layer_costs
from .products import spared
from .rates import Rates, rates
from .terms import Term
from .towers import towers
from .visits import again, forward_passes, visits
from .waiting import waiting
from .weights import weights

# How much longer the slowest of twice as many devices takes: large micro batches of fms-acceleration on 2 and 4 A100
# take 1 to 4 % longer than on one; MPT-7b of llm-foundry 9.90, 10.06 and 10.18 s on 4, 8 and 16 nodes.
_SLOWEST = 0.01


class Passes(NamedTuple):
    """All costs of one micro batch on one device, in which traffic may hide; recomputation is in the backward pass."""

    costs: tuple[Cost, ...]

    @property
    def forward(self) -> float:
        return sum(cost.forward for cost in self.costs)

    @property
    def backward(self) -> float:
        return sum(cost.backward for cost in self.costs)


def _layers(run: Run, rates: Rates) -> Iterator[Cost]:
    """Every layer forward; those that gradients visit backward, once more forward where their inputs alone are kept."""
    recomputed = 0.0
    for block, every, visited in visits(run):
        costs, trained = layer_costs(run, rates, block), weights(run, rates, block)
        yield from (Cost(cost.term, every * cost.forward, visited * cost.backward) for cost in costs)
        yield Cost(trained.term, visited * trained.forward, visited * trained.backward)
        once = sum(cost.forward for cost in costs) + trained.forward
        recomputed += visited * (once - spared(run, rates, block))
    yield Cost(Term.RECOMPUTATION, 0.0, again(run) * recomputed)


def _work(run: Run, rates: Rates) -> Iterator[Cost]:
    """Of the device itself."""
    yield from _layers(run, rates)
    yield head(run, rates)
    if run.arch.towers:
        yield towers(run, rates)


@lru_cache(maxsize=64)
def passes(run: Run, device: Device) -> Passes:
    """Costs of one micro batch on this device."""
    often = forward_passes(run)
    work = Passes(tuple(Cost(term, often * forward, backward) for term, forward, backward in _work(run, rates(device))))
    alone = Passes((*work.costs, waiting(run, work.forward + work.backward)))
    if run.sharding.world == 1:
        return alone
    waited = _SLOWEST * log2(run.sharding.world)
    return Passes((*alone.costs, Cost(Term.LINKS, waited * alone.forward, waited * alone.backward)))
