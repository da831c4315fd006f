"""Seconds of one micro batch on one device, forward and backward: layers, recomputation, output layer, towers, and
waiting for kernel launches and for slower devices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import log2
from typing import NamedTuple

from validator.physics.compute import early_stop_savings, layer_costs, lm_head_cost, weight_update_cost
from validator.physics.estimate import TimeTerm
from validator.physics.kernel_launches import launch_stalls
from validator.physics.rates import AttainedRates, DeviceRates, PassCost, attained_rates
from validator.physics.towers import TowerStep, tower_steps
from validator.physics.training_step import TrainingStep, forward_passes, layer_passes, recomputations


def tower_cost(run: TrainingStep, rates: AttainedRates) -> PassCost:
    """All towers with what stands beside their layers; nothing goes back where nothing trains."""
    costs = [_single_tower_cost(encoder, rates) for encoder in tower_steps(run) if encoder.encoding.tokens]
    return PassCost(TimeTerm.TOWERS, sum(cost.forward for cost in costs), sum(cost.backward for cost in costs))


def _single_tower_cost(encoder: TowerStep, rates: AttainedRates) -> PassCost:
    run, tower = encoder.run, encoder.tower
    costs = (*layer_costs(run, rates, encoder.block), weight_update_cost(run, rates, encoder.block))
    forward = tower.layers * sum(cost.forward for cost in costs)
    backward = tower.layers * sum(cost.backward for cost in costs)
    beside = sum(
        rates.product(run.tokens / tower.merge, each.inputs, each.outputs, run.sizes.compute, each.number)
        for each in (*tower.outside, *tower.projector)
    )
    back = 2 * beside if encoder.reached else 0.0
    if not encoder.inside:
        return PassCost(TimeTerm.TOWERS, forward + beside, back)
    again = forward if run.work.checkpointing != "off" and encoder.encoding.trains else 0.0
    return PassCost(TimeTerm.TOWERS, forward + beside, backward + back + again)


# How much longer the slowest of twice as many devices takes: large micro batches of fms-acceleration on 2 and 4 A100
# take 1 to 4 % longer than on one; MPT-7b of llm-foundry 9.90, 10.06 and 10.18 s on 4, 8 and 16 nodes.
_STRAGGLER_SHARE = 0.01


class MicroBatchCosts(NamedTuple):
    """All costs of one micro batch on one device, in which traffic may hide; recomputation is in the backward pass."""

    costs: tuple[PassCost, ...]

    @property
    def forward(self) -> float:
        return sum(cost.forward for cost in self.costs)

    @property
    def backward(self) -> float:
        return sum(cost.backward for cost in self.costs)


def _decoder_costs(run: TrainingStep, rates: AttainedRates) -> Iterator[PassCost]:
    """Every layer forward; those that gradients visit backward, once more forward where their inputs alone are kept."""
    recomputed = 0.0
    for block, every, visited in layer_passes(run):
        costs, trained = layer_costs(run, rates, block), weight_update_cost(run, rates, block)
        yield from (PassCost(cost.term, every * cost.forward, visited * cost.backward) for cost in costs)
        yield PassCost(trained.term, visited * trained.forward, visited * trained.backward)
        once = sum(cost.forward for cost in costs) + trained.forward
        recomputed += visited * (once - early_stop_savings(run, rates, block))
    yield PassCost(TimeTerm.RECOMPUTATION, 0.0, recomputations(run) * recomputed)


def _device_costs(run: TrainingStep, rates: AttainedRates) -> Iterator[PassCost]:
    """Of the device itself."""
    yield from _decoder_costs(run, rates)
    yield lm_head_cost(run, rates)
    if run.arch.towers:
        yield tower_cost(run, rates)


@lru_cache(maxsize=64)
def micro_batch_costs(run: TrainingStep, device: DeviceRates) -> MicroBatchCosts:
    """Costs of one micro batch on this device."""
    often = forward_passes(run)
    work = MicroBatchCosts(
        tuple(
            PassCost(term, often * forward, backward)
            for term, forward, backward in _device_costs(run, attained_rates(device))
        )
    )
    alone = MicroBatchCosts((*work.costs, launch_stalls(run, work.forward + work.backward)))
    if run.sharding.world == 1:
        return alone
    waited = _STRAGGLER_SHARE * log2(run.sharding.world)
    return MicroBatchCosts((*alone.costs, PassCost(TimeTerm.LINKS, waited * alone.forward, waited * alone.backward)))
