"""Time that a run takes: seconds of a usual step, hours of the whole run if the number of samples is known, and seconds
to write a checkpoint."""

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
from validator.run import multimodal
from validator.run.prediction import predict
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
    """Time of a run. `step` is the usual step; `tokens_per_second` counts all devices, padding included. `run` is None
    if the number of samples is not known. `assumed` says in words what is not known and makes the band wide."""

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
    """Step and run at one of the lengths that samples may have."""

    step: StepTime
    tokens: float
    steps: int | None
    run: RunTime | None


@lru_cache(maxsize=256)
def predict_training_time(
    job: RunSettings,
    sequences: int | None = None,
    lengths: tuple[int, ...] | None = None,
    correction: float | None = None,
) -> TrainingTime | None:
    """Return the time that the job takes. `sequences` and `lengths` are those of its data, if they were read; otherwise
    the rows of its data sets count, or the header block's recommended number. `correction`: measured seconds over
    predicted ones on the job's machine. None if model, machine or rates are unknown."""
    device, assumed = _machine_rates(job, correction)
    if device is None or job.model is None or predict(job).workload is None:
        return None
    known = estimate_sample_lengths(job, lengths)
    slow = device._replace(network=device.network * SLOWER_NETWORK) if assumed else device
    short, usual, long = (
        _training_time_at(job, each, rates, sequences)
        for each, rates in zip(known.lengths, (device, device, slow), strict=True)
    )
    step = usual.step._replace(low=min(short.step.low, usual.step.low), high=max(long.step.high, usual.step.high))
    run = usual.run
    if run and short.run and long.run:
        run = run._replace(low=min(short.run.low, run.low), high=max(long.run.high, run.high))
    return TrainingTime(step, usual.tokens / step.expected, usual.steps, run, (*known.assumed, *assumed))


def hours_by_length(job: RunSettings, correction: float | None = None) -> dict[int, Band]:
    """Return the hours by mean length of samples, tokens; empty if the length is known, or if the number of samples is
    not."""
    if not estimate_sample_lengths(job).guessed:
        return {}
    means = dict.fromkeys((*(each for each in _MEAN_LENGTHS if each < job.batch.max_tokens), job.batch.max_tokens))
    lengths = {mean: tuple(map(round, spread_lengths(mean, job.batch.max_tokens, told=False))) for mean in means}
    runs = {mean: predict_training_time(job, None, each, correction) for mean, each in lengths.items()}
    return {mean: run.hours for mean, run in runs.items() if run and run.hours}


def comparable_step_seconds(job: RunSettings, tokens: float | None) -> float | None:
    """Return the predicted seconds of a step that a measured step is divided by: of a step with `tokens` over all
    devices, padding included, else of full length. None if model, machine or rates are unknown; a machine without
    published rates is compared with an A100."""
    prediction = predict(job)
    device, _ = _machine_rates(job, 1.0)
    if device is None or job.model is None or prediction.workload is None:
        return None
    sequences = job.batch.effective_batch * prediction.workload.sequences_per_sample
    length = round(tokens / sequences) if tokens else prediction.workload.length
    return estimate_step_time(job.model.arch, prediction.workload._replace(length=max(1, length)), device).expected


def seconds_per_sample(job: RunSettings, lengths: Sequence[float]) -> float | None:
    """Return the expected seconds for each sample of these lengths, to compare jobs on the same data; None if model,
    machine or rates are unknown."""
    device, _ = _machine_rates(job)
    if device is None or job.model is None or predict(job).workload is None:
        return None
    cut = [min(each, job.batch.max_tokens) for each in lengths]
    step = estimate_step_time(job.model.arch, _workload_at_length(job, cut), device)
    return (
        step.expected
        / job.batch.effective_batch
        * (sum(cut) / len(cut) / job.batch.max_tokens if job.batch.packing else 1)
    )


def time_ratio(job: RunSettings, after: RunSettings, lengths: Sequence[float]) -> float | None:
    """Return the time of another job on the same samples, of these lengths, divided by this job's. None if either time
    is not known, or if the other job keeps more of each sample."""
    before = seconds_per_sample(job, lengths)
    seconds = seconds_per_sample(after, lengths) if before and after.batch.max_tokens <= job.batch.max_tokens else None
    return seconds / before if seconds and before else None


def _machine_rates(job: RunSettings, correction: float | None = None) -> tuple[DeviceRates | None, tuple[str, ...]]:
    """Return the rates of the job's machine, and what is assumed of them; no rates if the DeepSpeed file cannot be
    read. If no rates are published for the device, a correction scales those of another device."""
    machine = job.machine
    if machine is None or (job.deepspeed and job.deepspeed.problem):
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
    told = _named_network(job)
    joined = devices.parse_network(told or usual_network(device.id))
    assumed = () if told else (f"{joined.name} between nodes (`network:` in the header block tells another)",)
    return rates._replace(network=joined.rate), assumed


def _named_network(job: RunSettings) -> str | None:
    """Return the network that the header block names; None if the name is not known, which a rule reports."""
    name = job.machine.network if job.machine else None
    try:
        return devices.parse_network(name).name if isinstance(name, str) else None
    except RecipeError:
        return None


def _training_time_at(
    job: RunSettings, lengths: Sequence[float], device: DeviceRates, sequences: int | None
) -> _TimeAtLength:
    assert job.model
    work = _workload_at_length(job, lengths)
    step = estimate_step_time(job.model.arch, work, device)
    drawn = 1 if job.batch.group_by_length else work.micro_batch
    padded = work.length if job.batch.packing else min(_padded_length(expected_longest(lengths, drawn)), work.length)
    course = _run_course(job, lengths, device, sequences)
    run = estimate_run_time(step, course, job.model.arch, work, device) if course else None
    return _TimeAtLength(step, step.tokens * padded / work.length, int(course.steps) if course else None, run)


def _workload_at_length(job: RunSettings, lengths: Sequence[float]) -> Workload:
    """Return the workload with the sequence length that sets the step's time. Devices that shard gradients or weights
    wait for each other in every batch, others once a step. Batches are padded to a multiple of 8 (data/collator.py)."""
    prediction = predict(job)
    assert job.model
    assert prediction.workload
    work = prediction.workload
    if any(each.tokens for each in work.towers):
        work = work._replace(towers=multimodal.with_published_images(job, job.model, job.data.published, work.towers))
    if job.batch.packing:
        return work
    meets = work.sharding.strategy.shards_gradients
    micro, devices = (1, 1) if job.batch.group_by_length else (work.micro_batch, work.sharding.world_size)
    length = slowest_batch_length(lengths, micro, devices, 1 if meets else work.accumulation)
    return work._replace(length=min(_padded_length(length), work.length))


def _padded_length(length: float) -> int:
    return max(8, 8 * math.ceil(length / 8))


def _run_course(
    job: RunSettings, lengths: Sequence[float], device: DeviceRates, sequences: int | None
) -> RunCounts | None:
    """Return the counts of steps, evaluations and saves of the run, with samples of these lengths; None if the number
    of samples is not known."""
    taken = sample_counts(job)
    mean = sum(lengths) / len(lengths)
    if sequences is None and taken.train is not None:
        sequences = math.ceil(taken.train * mean / job.batch.max_tokens) if job.batch.packing else taken.train
    if sequences is None and job.args.number("max_steps") <= 0:
        return None
    plan = training_schedule(job, sequences or 1)
    batch = max(int(job.args.number("per_device_eval_batch_size")), 1) * job.batch.world_size
    texts = (taken.train or 0) + taken.held
    return RunCounts(
        steps=plan.total,
        evaluations=_evaluation_count(job, plan.total, plan.epochs) if taken.held else 0,
        evaluation_batches=math.ceil(taken.held / batch),
        saves=plan.saves,
        checkpoint=predict(job).checkpoint,
        tokenized=0.0
        if job.data.is_tokenized or job.args.flag("streaming")
        else texts * mean * (2 if job.task.uses_preference_pairs else 1),
        tokenizers=min(max(int(job.args.number("preprocessing_num_workers")), 1), device.cores),
    )


class SampleCounts(NamedTuple):
    """Samples trained on, None if not known; and samples evaluated, as far as known."""

    train: int | None
    held: int


def sample_counts(job: RunSettings) -> SampleCounts:
    """Return the rows of the data sets that the run trains on and evaluates (data/loader.py, data_utils.py), else the
    recommended number."""
    if job.data.rows is None:
        return SampleCounts(None, 0)
    return SampleCounts(job.data.rows - job.data.held_back_rows, job.data.held_back_rows + _evaluation_only_rows(job))


def _evaluation_only_rows(job: RunSettings) -> int:
    """Return the rows of data sets for evaluation alone, as far as they can be counted."""
    names = dict.fromkeys(job.args.words("eval_dataset")) if job.data.registry else {}
    sets = [one for name in names if job.data.registry and (one := job.data.registry.get(name))]
    return sum(one.rows.number for one in sets if one.rows)


def _evaluation_count(job: RunSettings, total: int, epochs: float) -> float:
    """Return how often the run is evaluated: at each interval, and once more at the end (train/sft/workflow.py). If no
    interval is named, the logging interval counts (transformers, training_args.py)."""
    if not job.evaluation.runs:
        return 0
    if job.evaluation.strategy == "epoch":
        return math.ceil(epochs) + 1
    every = job.args.number("eval_steps") or job.args.number("logging_steps")
    every = math.ceil(total * every) if every < 1 else every
    return (total // every if job.evaluation.strategy == "steps" and every else 0) + 1


# A disk of which nobody published a rate, bytes a second: a busy network file system.
_SLOW_DISK = 0.2 * GIB


def checkpoint_write_seconds(job: RunSettings) -> float:
    """Return the most seconds that writing one checkpoint takes; 0 if its size is not known."""
    prediction = predict(job)
    rates = job.machine.device.rates(job.machine.devices) if job.machine else None
    if rates is None or prediction.workload is None:
        return prediction.checkpoint / _SLOW_DISK
    return checkpoint_write_time(prediction.checkpoint, prediction.workload, rates).high


def seconds_between_checkpoints(job: RunSettings) -> float | None:
    """Return the most seconds from one checkpoint to the next; infinite if none is written before the end, None if the
    time is not known."""
    timed = predict_training_time(job)
    if timed is None:
        return None
    total = timed.steps or int(job.steps)
    every = save_interval(job, job.batch.steps_per_epoch(job.data.rows or 0), total)
    if not total and (job.args.get("save_strategy") != "steps" or every < 1):
        return None
    return every * timed.step.high if every and every < (total or math.inf) else math.inf
