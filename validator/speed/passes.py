"""What one micro batch costs a device in the forward and in the backward pass. Seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .device import Device
from .head import head
from .hooks import hooks
from .launches import launches
from .layer import layer_costs
from .products import spared
from .rates import Rates, rates
from .terms import Term
from .towers import towers

# How sharply the slower of device and processor decides: infinitely if one of them never waited for the other. Qwen's
# README times 256 to 8192 tokens on A100, where each is the slower one in turn.
_AHEAD = 3
# How much longer the slowest of several devices takes than one alone: large micro batches of fms-acceleration on 2 and
# 4 A100 take 1 to 4 % longer than on one.
_SLOWEST = 0.02


class Passes(NamedTuple):
    """All costs of one micro batch on one device, in which traffic may hide; recomputation is in the backward pass."""

    costs: tuple[Cost, ...]

    @property
    def forward(self) -> float:
        return sum(cost.forward for cost in self.costs)

    @property
    def backward(self) -> float:
        return sum(cost.backward for cost in self.costs)


def _kinds(run: Run) -> Iterator[tuple[Block, int, int]]:
    """Each kind of layer, how many there are, and how many of them gradients visit."""
    every, visited = Counter[Block](), Counter[Block]()
    for number, block in run.layers:
        every[block] += number
    for number, block in run.visited:
        visited[block] += number
    yield from ((block, number, visited[block]) for block, number in every.items())


def _layers(run: Run, rates: Rates) -> Iterator[Cost]:
    """Every layer forward; those that gradients visit backward, once more forward where their inputs alone are kept."""
    again = 0.0
    for block, number, back in _kinds(run):
        costs = layer_costs(run, rates, block)
        yield from (Cost(cost.term, number * cost.forward, back * cost.backward) for cost in costs)
        again += back * (sum(cost.forward for cost in costs) - spared(run, rates, block))
    if run.checkpointing != "off":
        yield Cost(Term.RECOMPUTATION, 0.0, again)


def _without_gradients(run: Run) -> int:
    """Further forward passes: of a reference, and of mismatched answers (KTO)."""
    return (1 + int(run.work.reference_logits)) * (2 if run.work.estimates_kl else 1) - 1


def _started(run: Run, block: Block) -> Cost:
    """What the processor does for a layer."""
    starts, holds = launches(run, block), hooks(run, block)
    return Cost(Term.LAUNCHES, starts.forward + holds.forward, starts.backward + holds.backward)


def _through(run: Run, layer: Callable[[Run, Block], Cost]) -> Cost:
    """Of all layers, in all passes."""
    again = 0 if run.checkpointing == "off" else 1
    forward = backward = 0.0
    for block, number, back in _kinds(run):
        cost = layer(run, block)
        forward += (1 + _without_gradients(run)) * number * cost.forward
        backward += back * (cost.backward + again * cost.forward)
    return Cost(Term.LAUNCHES, forward, backward)


def _waits(costs: Iterable[Cost], started: Cost) -> Cost:
    """What a processor that starts kernels slower than the device ends them adds: it runs ahead where it can."""
    worked = sum(cost.forward + cost.backward for cost in costs)
    whole = started.forward + started.backward
    share = ((worked**_AHEAD + whole**_AHEAD) ** (1 / _AHEAD) - worked) / whole
    return Cost(Term.LAUNCHES, share * started.forward, share * started.backward)


def _skew(costs: Iterable[Cost]) -> Cost:
    """What devices wait for the slowest of them."""
    cost = [sum(way) for way in zip(*((each.forward, each.backward) for each in costs), strict=True)]
    return Cost(Term.LINKS, _SLOWEST * cost[0], _SLOWEST * cost[1])


@lru_cache(maxsize=64)
def passes(run: Run, device: Device) -> Passes:
    """Costs of one micro batch on this device."""
    attained = rates(device)
    costs = [*_layers(run, attained), head(run, attained)]
    if run.arch.towers:
        costs.append(towers(run, attained))
    if further := _without_gradients(run):
        costs = [Cost(term, (1 + further) * forward, backward) for term, forward, backward in costs]
    costs.append(_waits(costs, _through(run, _started)))
    return Passes((*costs, *((_skew(costs),) if run.sharding.world > 1 else ())))
