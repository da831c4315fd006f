"""What one micro batch costs a device in the forward and in the backward pass. Seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from validator.memory.run import Run

from .cost import Cost
from .device import Device
from .head import head
from .launches import launches
from .layer import layer_costs
from .products import spared
from .rates import Rates, rates
from .terms import Term
from .towers import towers


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
    again = 0.0
    visited = dict.fromkeys(block for _, block in run.visited)
    numbers = {block: number for number, block in run.visited}
    for number, block in run.layers:
        for cost in layer_costs(run, rates, block):
            back = numbers.get(block, 0) if block in visited else 0
            yield Cost(cost.term, number * cost.forward, back * cost.backward)
            again += back * cost.forward
        again -= numbers.get(block, 0) * spared(run, rates, block)
    if run.checkpointing != "off":
        yield Cost(Term.RECOMPUTATION, 0.0, again)


def _without_gradients(run: Run) -> int:
    """Further forward passes: of a reference, and of mismatched answers (KTO)."""
    return (1 + int(run.work.reference_logits)) * (2 if run.work.estimates_kl else 1) - 1


def _started(run: Run) -> Cost:
    """Starting the kernels of all passes."""
    again = 0 if run.checkpointing == "off" else 1
    forward = backward = 0.0
    numbers = {block: number for number, block in run.visited}
    for number, block in run.layers:
        cost, back = launches(run, block), numbers.get(block, 0)
        forward += (1 + _without_gradients(run)) * number * cost.forward
        backward += back * (cost.backward + again * cost.forward)
    return Cost(Term.LAUNCHES, forward, backward)


def _waits(costs: Iterable[Cost], started: Cost) -> Cost:
    """What starting kernels takes longer than the device's work: the processor runs ahead from pass to pass."""
    worked = sum(cost.forward + cost.backward for cost in costs)
    whole = started.forward + started.backward
    share = max(0.0, whole - worked) / whole
    return Cost(Term.LAUNCHES, share * started.forward, share * started.backward)


@lru_cache(maxsize=64)
def passes(run: Run, device: Device) -> Passes:
    """Costs of one micro batch on this device."""
    attained = rates(device)
    costs = [*_layers(run, attained), head(run, attained)]
    if run.arch.towers:
        costs.append(towers(run, attained))
    if further := _without_gradients(run):
        costs = [Cost(term, (1 + further) * forward, backward) for term, forward, backward in costs]
    return Passes((*costs, _waits(costs, _started(run))))
