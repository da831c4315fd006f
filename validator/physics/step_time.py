"""Seconds of one optimizer step, by time term: its micro batches, communication, offload, data loading and the
update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from validator.physics.architecture import Architecture
from validator.physics.communication import communication_seconds
from validator.physics.estimate import TimeTerm
from validator.physics.micro_batch import MicroBatchCosts, micro_batch_costs
from validator.physics.optimizer_time import device_update_seconds, offload_seconds
from validator.physics.rates import DeviceRates, attained_rates
from validator.physics.rollout import rollout_seconds
from validator.physics.towers import tower_input_bytes
from validator.physics.training_step import TrainingStep, training_step
from validator.physics.uncertainty import step_time_band, step_time_gaps
from validator.physics.workload import Workload

# Bytes of numbers that one process makes in a second: Qwen2-VL's processor of transformers 5.6 opens, scales and cuts a
# JPEG of 768 x 768 pixels in 30 ms on one core of a server, which is 4.6e8; LLaMA-Factory opens and scales it once more
# before (data/mm_plugin.py, _regularize_images).
_PROCESSOR_RATE = 3.0e8


def data_loading_seconds(step: TrainingStep, device: DeviceRates, micro_batch: MicroBatchCosts) -> float:
    """Seconds of a step that the device waits while images, videos or sound are processed. Without data-loader workers
    the training process does this work itself. Workers do it while the device computes; at most as many workers as
    there are CPU cores run at once."""
    work = step.work
    seconds = tower_input_bytes(step) / _PROCESSOR_RATE
    if not work.loader_workers:
        return seconds
    workers = max(1.0, min(work.loader_workers, device.cores / step.sharding.devices_per_node))
    return max(0.0, seconds / workers - work.accumulation * (micro_batch.forward + micro_batch.backward))


class StepTime(NamedTuple):
    """Seconds of one optimizer step: all micro batches of gradient accumulation, on all devices at once. `terms` sum to
    `expected`; `low` to `high` is the 90 % band; `gaps` say in words what makes the band wide. `tokens` are the tokens
    of the step over all devices, padding included."""

    terms: Mapping[TimeTerm, float]
    low: float
    expected: float
    high: float
    tokens: int
    gaps: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> TimeTerm:
        """The time term with the most seconds."""
        return max(self.terms, key=lambda term: self.terms[term])


def estimate_step_time(architecture: Architecture, workload: Workload, device: DeviceRates) -> StepTime:
    """Estimate the seconds of one optimizer step, by time term, if all devices have the rates of `device`.

    A PPO step is longer: it answers all its prompts, then makes an optimizer step for each batch of answers, several
    times."""
    step = training_step(architecture, workload)
    seconds: defaultdict[TimeTerm, float] = defaultdict(float)
    for cost in micro_batch_costs(step, device).costs:
        seconds[cost.term] += workload.accumulation * (cost.forward + cost.backward)
    seconds[TimeTerm.OPTIMIZER] += device_update_seconds(step, attained_rates(device))
    seconds[TimeTerm.DATA_LOADING] += (
        data_loading_seconds(step, device, micro_batch_costs(step, device)) if architecture.towers else 0.0
    )
    for waits in (communication_seconds(step, device, micro_batch_costs(step, device)), offload_seconds(step, device)):
        for term, value in waits.items():
            seconds[term] += value
    batches = 1
    if rollout := workload.rollout:
        batches = rollout.batches
        seconds = defaultdict(float, {term: rollout.epochs * batches * value for term, value in seconds.items()})
        seconds[TimeTerm.ROLLOUT] = rollout_seconds(step, device)
    terms = {term: device.correction * value for term, value in seconds.items() if value}
    expected = sum(terms.values())
    tokens = batches * workload.sharding.world_size * workload.accumulation * step.tokens
    low, high = step_time_band(step, device, terms)
    return StepTime(terms, low, expected, high, tokens, step_time_gaps(step, device, terms))
