"""Time of a run: seconds of a usual optimizer step, hours of the whole run if the number of samples is known, and
seconds to write a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from validator.errors import RecipeError
from validator.knowledge import devices
from validator.knowledge.devices import usual_network
from validator.physics import (
    Band,
    DeviceRates,
    RunCounts,
    RunTime,
    StepTime,
    Workload,
    estimate_run_time,
    estimate_step_time,
)
from validator.physics.estimate import GIB
from validator.physics.run_time import checkpoint_write_time
from validator.run import multimodal, row_images
from validator.run.hyperparameters import padded_to_eight
from validator.run.prediction import predict
from validator.run.sample_counts import sample_counts, sequence_count
from validator.run.sample_lengths import estimate_sample_lengths, expected_longest, slowest_batch_length, spread_lengths
from validator.run.schedule import save_interval, training_schedule
from validator.run.settings import RunSettings

# The usual server's network is that of a large cloud. Many a cluster has a part of it: the band ends there.
SLOWER_NETWORK = 0.25
# Mean lengths of samples, tokens: short questions and answers, ordinary ones, conversations.
_MEAN_LENGTHS = (256, 512, 1024)
# What machines without published rates are held against, once a step was measured on them.
_REFERENCE_DEVICE = "a100-80g"


class TrainingTime(NamedTuple):
    """Predicted time of a run. `step`: the usual optimizer step. `tokens_per_second`: over all devices, padding
    included. `run`: the whole run; None if the number of samples is not known. `assumed`: what is not known and so
    makes the time range wide, as text for a message."""

    step: StepTime
    tokens_per_second: float
    steps: int | None
    run: RunTime | None
    assumed: tuple[str, ...]

    @property
    def hours(self) -> Band | None:
        """Hours of the whole run; None if the number of samples is not known."""
        return Band(self.run.low, self.run.expected, self.run.high).times(1 / 3600) if self.run else None


class _TimeAtLength(NamedTuple):
    """Time of an optimizer step and of the run, for one estimate of the sample lengths (the shortest, the usual or the
    longest). `tokens`: tokens of a step. `steps`, `run`: None if the number of samples is not known."""

    step: StepTime
    tokens: float
    steps: int | None
    run: RunTime | None


@lru_cache(maxsize=256)
def predict_training_time(
    run: RunSettings,
    sequences: int | None = None,
    lengths: tuple[int, ...] | None = None,
    correction: float | None = None,
    tower_tokens: int | None = None,
    exact: bool = True,
) -> TrainingTime | None:
    """Return the predicted time of the run; None if model, machine, the machine's rates or the sharding of states are
    not known. `sequences`: number of training sequences; None to take the rows of the data sets, or the recommended
    number of the header block. `lengths`: tokens of each sample; None to estimate them. `correction`: measured seconds
    divided by predicted seconds on this machine; None if nothing was measured. `tower_tokens`: tokens of the vision
    tower that a usual sample's images have, if the images were read. `exact`: `lengths` were counted with the model's
    tokenizer, and not estimated."""
    device, assumed = _machine_rates(run, correction)
    if device is None or run.model is None or predict(run).workload is None:
        return None
    samples = estimate_sample_lengths(run, lengths, exact)
    slow = device._replace(network=device.network * SLOWER_NETWORK) if assumed else device
    short, usual, long = (
        _training_time_at(run, each, rates, sequences, tower_tokens)
        for each, rates in zip(samples.lengths, (device, device, slow), strict=True)
    )
    step = usual.step._replace(low=min(short.step.low, usual.step.low), high=max(long.step.high, usual.step.high))
    run_time = usual.run
    if run_time and short.run and long.run:
        run_time = run_time._replace(low=min(short.run.low, run_time.low), high=max(long.run.high, run_time.high))
    return TrainingTime(step, usual.tokens / step.expected, usual.steps, run_time, (*samples.assumed, *assumed))


def hours_by_length(run: RunSettings, correction: float | None = None) -> dict[int, Band]:
    """Return the hours of the run for several possible mean lengths of samples, by mean length in tokens. Empty if the
    recipe or the data give the sample lengths, or if the number of samples is not known. `correction`: measured seconds
    divided by predicted seconds on this machine; None if nothing was measured."""
    if not estimate_sample_lengths(run).guessed:
        return {}
    means = dict.fromkeys((*(each for each in _MEAN_LENGTHS if each < run.batch.max_tokens), run.batch.max_tokens))
    lengths = {mean: tuple(map(round, spread_lengths(mean, run.batch.max_tokens, told=False))) for mean in means}
    runs = {mean: predict_training_time(run, None, each, correction) for mean, each in lengths.items()}
    return {mean: run_time.hours for mean, run_time in runs.items() if run_time and run_time.hours}


def comparable_step_seconds(run: RunSettings, tokens: float | None) -> float | None:
    """Return the predicted seconds of an optimizer step, to compare with a measured step. `tokens`: tokens of the
    measured step over all devices, padding included; None if every sequence had the full length. For a machine without
    published rates, the seconds on an A100. None if the model, the machine or the sharding of states is not known."""
    prediction = predict(run)
    device, _ = _machine_rates(run, 1.0)
    if device is None or run.model is None or prediction.workload is None:
        return None
    sequences = run.batch.effective_batch * prediction.workload.sequences_per_sample
    length = round(tokens / sequences) if tokens else prediction.workload.length
    return estimate_step_time(run.model.arch, prediction.workload._replace(length=max(1, length)), device).expected


def seconds_per_sample(run: RunSettings, lengths: Sequence[float]) -> float | None:
    """Return the expected training time per sample, in seconds. `lengths`: the samples' lengths in tokens. The result
    serves to compare runs on the same data. None if model, machine or the machine's rates are unknown."""
    device, _ = _machine_rates(run)
    if device is None or run.model is None or predict(run).workload is None:
        return None
    cut = [min(each, run.batch.max_tokens) for each in lengths]
    step = estimate_step_time(run.model.arch, _workload_at_length(run, cut), device)
    return (
        step.expected
        / run.batch.samples_per_step
        * (sum(cut) / len(cut) / run.batch.max_tokens if run.batch.packing else 1)
    )


def time_ratio(run: RunSettings, after: RunSettings, lengths: Sequence[float]) -> float | None:
    """Return the time of the run `after` divided by the time of `run`, if both train on the same samples: of the whole
    runs if the number of samples is known, else of the steps. `lengths`: the samples' lengths in tokens. None if either
    time is not known, or if `after` cuts samples at a greater length than `run`."""
    if after.batch.max_tokens > run.batch.max_tokens:
        return None
    before, seconds = (_run_seconds(each, lengths) for each in (run, after))
    other_samples = run.args.number("max_steps") > 0 and run.batch.effective_batch != after.batch.effective_batch
    if not before or not seconds or other_samples:
        before, seconds = (seconds_per_sample(each, lengths) for each in (run, after))
    return seconds / before if seconds and before else None


def _run_seconds(run: RunSettings, lengths: Sequence[float]) -> float | None:
    """Return the expected seconds of the whole run; None if they are not known. `lengths`: the samples' lengths in
    tokens."""
    device, _ = _machine_rates(run)
    if device is None or run.model is None or predict(run).workload is None:
        return None
    cut = [min(each, run.batch.max_tokens) for each in lengths]
    whole = _training_time_at(run, cut, device, None, None).run
    return whole.expected if whole else None


def usual_time_ratio(run: RunSettings, after: RunSettings) -> float | None:
    """Return the time of another run on samples of usual lengths, divided by this run's; None if not known."""
    return time_ratio(run, after, estimate_sample_lengths(run).lengths[1])


def _machine_rates(run: RunSettings, correction: float | None = None) -> tuple[DeviceRates | None, tuple[str, ...]]:
    """Return the rates of the run's machine, and what is assumed about them as text for messages. The rates are None if
    no machine is named, no rates are published for the device, or the DeepSpeed file cannot be read. If no rates are
    published but `correction` is given, the rates of another device are scaled by it."""
    machine = run.machine
    if machine is None or (run.deepspeed and run.deepspeed.problem):
        return None, ()
    device, rates = machine.device, machine.device.rates(machine.devices)
    if rates is None and correction is not None:
        device = devices.find_device(_REFERENCE_DEVICE)[0]
        if rates := device.rates(machine.devices):
            rates = rates._replace(evidence="none")
    if rates and correction is not None:
        rates = rates._replace(correction=correction)
    if rates is None or machine.nodes == 1:
        return rates, ()
    network_name = _named_network(run)
    joined = devices.parse_network(network_name or usual_network(device.id, machine.devices))
    part = (
        "" if joined.name == usual_network(device.id, device.server_devices) else ", as rented parts of a server have"
    )
    remedy = "`network:` in the header block tells another"
    assumed = () if network_name else (f"{joined.name} between nodes{part} ({remedy})",)
    return rates._replace(network=joined.rate), assumed


def assumed_network(run: RunSettings) -> tuple[str, ...]:
    """Return, as text for a message, the network between nodes that the time is predicted for and that the header block
    does not name; empty if there is no such network."""
    return _machine_rates(run)[1]


def _named_network(run: RunSettings) -> str | None:
    """Return the network between nodes that the recipe's header block names; None if it names none or an unknown one. A
    rule reports an unknown name."""
    name = run.machine.network if run.machine else None
    try:
        return devices.parse_network(name).name if isinstance(name, str) else None
    except RecipeError:
        return None


def _training_time_at(
    run: RunSettings, lengths: Sequence[float], device: DeviceRates, sequences: int | None, tower_tokens: int | None
) -> _TimeAtLength:
    assert run.model
    work = _workload_at_length(run, lengths, tower_tokens)
    step = estimate_step_time(run.model.arch, work, device)
    drawn = 1 if run.batch.group_by_length else work.micro_batch
    padded = work.length
    if not run.batch.packing and not work.rollout:
        padded = min(padded_to_eight(expected_longest(lengths, drawn)), work.length)
    course = _run_course(run, lengths, device, sequences)
    run_time = estimate_run_time(step, course, run.model.arch, work, device) if course else None
    return _TimeAtLength(step, step.tokens * padded / work.length, int(course.steps) if course else None, run_time)


def _workload_at_length(run: RunSettings, lengths: Sequence[float], tower_tokens: int | None = None) -> Workload:
    """Return the workload with the sequence length that determines the time of a step. `lengths`: the samples' lengths
    in tokens. `tower_tokens`: tokens of the vision tower for a usual sample's images; None to estimate them.

    Devices that shard gradients or weights wait for each other in every batch, other devices once a step. Batches are
    padded to a multiple of 8 (data/collator.py)."""
    prediction = predict(run)
    assert run.model
    assert prediction.workload
    work = prediction.workload
    if any(each.tokens for each in work.towers) and tower_tokens is None:
        tower_tokens = row_images.usual_tower_tokens(run)
    if tower_tokens is not None:
        work = work._replace(towers=multimodal.with_tower_tokens(run, run.model, tower_tokens, work.towers))
    elif any(each.tokens for each in work.towers):
        work = work._replace(towers=multimodal.with_published_images(run, run.model, run.data.published, work.towers))
    if run.batch.packing:
        return work
    meets = work.sharding.strategy.shards_gradients
    micro, devices = (1, 1) if run.batch.group_by_length else (work.micro_batch, work.sharding.world_size)
    length = slowest_batch_length(lengths, micro, devices, 1 if meets else work.accumulation)
    answer = work.rollout.new_tokens if work.rollout else 0
    return work._replace(length=min(padded_to_eight(length) + answer, work.length))


def _run_course(
    run: RunSettings, lengths: Sequence[float], device: DeviceRates, sequences: int | None
) -> RunCounts | None:
    """Return the numbers on which the time of the whole run depends: steps, evaluations, saves, and tokens to tokenize.
    `lengths`: the samples' lengths in tokens. `sequences`: number of training sequences, if the data were read. None if
    the number of steps is not known."""
    samples = sample_counts(run)
    mean = sum(lengths) / len(lengths)
    if sequences is None:
        sequences = sequence_count(run, lengths)
    if sequences is None and run.args.number("max_steps") <= 0:
        return None
    plan = training_schedule(run, sequences or 1)
    batch = max(int(run.args.number("per_device_eval_batch_size")), 1) * run.batch.world_size
    texts = (samples.train or 0) + samples.held_back
    return RunCounts(
        steps=plan.total,
        evaluations=plan.evaluations if samples.held_back else 0,
        evaluation_batches=math.ceil(samples.held_back / batch),
        saves=plan.saves,
        checkpoint=predict(run).checkpoint_bytes,
        tokenized=0.0
        if run.data.is_tokenized or run.args.flag("streaming")
        else texts * mean * (2 if run.task.uses_preference_pairs else 1),
        tokenizers=min(max(int(run.args.number("preprocessing_num_workers")), 1), device.cores),
    )


# A disk of which nobody published a rate, bytes a second: a busy network file system.
_SLOW_DISK = 0.2 * GIB


def checkpoint_write_seconds(run: RunSettings) -> float:
    """Return the most seconds that writing one checkpoint may take; 0 if the checkpoint's size is not known."""
    prediction = predict(run)
    rates = run.machine.device.rates(run.machine.devices) if run.machine else None
    if rates is None or prediction.workload is None:
        return prediction.checkpoint_bytes / _SLOW_DISK
    return checkpoint_write_time(prediction.checkpoint_bytes, prediction.workload, rates).high


def seconds_between_checkpoints(run: RunSettings) -> float | None:
    """Return the most seconds from one checkpoint to the next. Infinite if the run writes no checkpoint before its end;
    None if the time is not known."""
    timed = predict_training_time(run)
    if timed is None:
        return None
    total = timed.steps or int(run.steps)
    every = save_interval(run, total)
    if not total and (run.args.get("save_strategy") != "steps" or every < 1):
        return None
    return every * timed.step.high if every and every < (total or math.inf) else math.inf
