"""Seconds of one micro batch on one device, forward and backward: layers, recomputation, output layer, towers, and
waits for kernel launches and for slower devices."""

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
from validator.physics.training_step import TrainingStep, forward_passes, layer_passes


def tower_cost(step: TrainingStep, rates: AttainedRates) -> PassCost:
    """Seconds of all towers with their projectors in one micro batch, forward and backward. A tower in which nothing
    trains has no backward pass."""
    costs = [_single_tower_cost(encoder, rates) for encoder in tower_steps(step) if encoder.workload.tokens]
    return PassCost(TimeTerm.TOWERS, sum(cost.forward for cost in costs), sum(cost.backward for cost in costs))


def _single_tower_cost(encoder: TowerStep, rates: AttainedRates) -> PassCost:
    step, tower = encoder.step, encoder.tower
    costs = (*layer_costs(step, rates, encoder.layer), weight_update_cost(step, rates, encoder.layer))
    forward = tower.layers * sum(cost.forward for cost in costs)
    backward = tower.layers * sum(cost.backward for cost in costs)
    outside = sum(
        rates.product(step.tokens / tower.merge, each.inputs, each.outputs, step.sizes.compute, each.number)
        for each in (*tower.outside, *tower.projector)
    )
    outside_backward = 2 * outside if encoder.backward_in_projector else 0.0
    if not encoder.backward_in_layers:
        return PassCost(TimeTerm.TOWERS, forward + outside, outside_backward)
    recomputed = forward if step.work.checkpointing != "off" and encoder.workload.trains else 0.0
    return PassCost(TimeTerm.TOWERS, forward + outside, backward + outside_backward + recomputed)


# How much longer the slowest of twice as many devices takes: large micro batches of fms-acceleration on 2 and 4 A100
# take 1 to 4 % longer than on one; MPT-7b of llm-foundry 9.90, 10.06 and 10.18 s on 4, 8 and 16 nodes.
_STRAGGLER_SHARE = 0.01


class MicroBatchCosts(NamedTuple):
    """Seconds of one micro batch on one device, split by term. Communication can overlap with these seconds.
    Recomputation counts in the backward pass."""

    costs: tuple[PassCost, ...]

    @property
    def forward(self) -> float:
        return sum(cost.forward for cost in self.costs)

    @property
    def backward(self) -> float:
        return sum(cost.backward for cost in self.costs)


def _decoder_costs(step: TrainingStep, rates: AttainedRates) -> Iterator[PassCost]:
    """Yield the costs of the decoder's layers, by time term. Every layer runs forward. The layers that the backward
    pass visits also run backward, and are computed again before that if only their inputs were saved."""
    recomputation = 0.0
    for layer, every, visited, recomputed in layer_passes(step):
        costs, trained = layer_costs(step, rates, layer), weight_update_cost(step, rates, layer)
        yield from (PassCost(cost.term, every * cost.forward, visited * cost.backward) for cost in costs)
        yield PassCost(trained.term, visited * trained.forward, visited * trained.backward)
        seconds = sum(cost.forward for cost in costs) + trained.forward
        recomputation += recomputed * (seconds - early_stop_savings(step.for_layer(layer), rates, layer))
    yield PassCost(TimeTerm.RECOMPUTATION, 0.0, recomputation)
    if step.work.passed_layers:
        costs = layer_costs(step.frozen, rates, step.frozen.layers[-1][1])
        yield from (PassCost(cost.term, 0.0, step.work.passed_layers * cost.backward) for cost in costs)


def _device_costs(step: TrainingStep, rates: AttainedRates) -> Iterator[PassCost]:
    """Yield the costs of the device's own computation, without its waits for the CPU and for other devices."""
    yield from _decoder_costs(step, rates)
    yield lm_head_cost(step, rates)
    if step.arch.towers:
        yield tower_cost(step, rates)


@lru_cache(maxsize=64)
def micro_batch_costs(step: TrainingStep, device: DeviceRates) -> MicroBatchCosts:
    """Return the costs of one micro batch on this device, including waits for kernel launches and, in runs with several
    devices, for the slowest device."""
    passes, rates = forward_passes(step), attained_rates(device)
    costs = (PassCost(term, passes * forward, backward) for term, forward, backward in _device_costs(step, rates))
    work = MicroBatchCosts(tuple(costs))
    single = MicroBatchCosts((*work.costs, launch_stalls(step, rates, work.forward + work.backward)))
    if step.sharding.world_size == 1:
        return single
    share = _STRAGGLER_SHARE * log2(step.sharding.world_size)
    return MicroBatchCosts(
        (*single.costs, PassCost(TimeTerm.COMMUNICATION, share * single.forward, share * single.backward))
    )
