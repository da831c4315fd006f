"""How long a recipe takes: seconds of its usual step, and its whole course where the number of samples is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.job.extent import extent
from validator.job.job import Job
from validator.job.schedule import schedule
from validator.memory import Workload
from validator.speed import Course, Device, RunTime, Span, StepTime, run_time, step_time
from validator.speed.padding import longest_of, spread, waited_for
from validator.tables import devices, networks
from validator.tables.rates import usual

# The usual server's network is that of a large cloud. Many a cluster has a part of it: the band ends there.
SLOWER_NETWORK = 0.25
# Mean lengths of samples, tokens: short questions and answers, ordinary ones, conversations.
_MEANS = (256, 512, 1024)
# What machines without published rates are held against, once a step was measured on them.
_REFERENCE = "a100-80g"


class Pace(NamedTuple):
    """Of the usual step of a run: `tokens_per_second` are those of all devices, padding included. `run` is None where
    the number of samples is not known. `assumed`: what was taken for granted and makes the band wide, in words."""

    step: StepTime
    tokens_per_second: float
    steps: int | None
    run: RunTime | None
    assumed: tuple[str, ...]

    @property
    def hours(self) -> Span | None:
        """Of the whole run; None where the number of samples is not known."""
        return Span(self.run.low, self.run.expected, self.run.high).times(1 / 3600) if self.run else None


class _Case(NamedTuple):
    """One of the lengths that samples may have, and what it comes to."""

    step: StepTime
    tokens: float
    steps: int | None
    run: RunTime | None


@lru_cache(maxsize=256)
def pace(
    job: Job,
    sequences: int | None = None,
    lengths: tuple[int, ...] | None = None,
    correction: float | None = None,
) -> Pace | None:
    """How long the job takes. `sequences` and `lengths` are those of its data, where they were read; else the rows of
    its data sets count, or those that the header block recommends. `correction`: measured seconds over predicted on
    the job's machine. None where model, machine or rates are unknown."""
    device, assumed = _device(job, correction)
    if device is None or job.model is None or job.workload is None:
        return None
    known = extent(job, lengths)
    slow = device._replace(network=device.network * SLOWER_NETWORK) if assumed else device
    short, usual, long = (
        _case(job, each, rates, sequences) for each, rates in zip(known.lengths, (device, device, slow), strict=True)
    )
    step = usual.step._replace(low=min(short.step.low, usual.step.low), high=max(long.step.high, usual.step.high))
    run = usual.run
    if run and short.run and long.run:
        run = run._replace(low=min(short.run.low, run.low), high=max(long.run.high, run.high))
    return Pace(step, usual.tokens / step.expected, usual.steps, run, (*known.assumed, *assumed))


def by_length(job: Job, correction: float | None = None) -> dict[int, Span]:
    """Hours by the mean length of samples, tokens; empty where the length is told, or no number of samples is known."""
    if not extent(job).guessed:
        return {}
    means = dict.fromkeys((*(each for each in _MEANS if each < job.longest), job.longest))
    lengths = {mean: tuple(map(round, spread(mean, job.longest, told=False))) for mean in means}
    runs = {mean: pace(job, None, each, correction) for mean, each in lengths.items()}
    return {mean: run.hours for mean, run in runs.items() if run and run.hours}


def measurable(job: Job, tokens: float | None) -> float | None:
    """Seconds that a correction is measured against: of a step with so many tokens over all devices, padding included,
    else of full length. None as with `pace`, but that a machine without published rates is held against another."""
    device, _ = _device(job, 1.0)
    if device is None or job.model is None or job.workload is None:
        return None
    sequences = job.effective_batch * job.workload.sequences_per_sample
    length = round(tokens / sequences) if tokens else job.workload.length
    return step_time(job.model.arch, job.workload._replace(length=max(1, length)), device).expected


def per_sample(job: Job, lengths: Sequence[float]) -> float | None:
    """Expected seconds for each sample of these lengths, to compare jobs on the same data; None as with `pace`."""
    device, _ = _device(job)
    if device is None or job.model is None or job.workload is None:
        return None
    cut = [min(each, job.longest) for each in lengths]
    step = step_time(job.model.arch, _with_length(job, cut), device)
    return step.expected / job.effective_batch * (sum(cut) / len(cut) / job.longest if job.packs else 1)


def ratio(job: Job, after: Job, lengths: Sequence[float]) -> float | None:
    """How many times as long another job takes on the same samples, of these lengths. None where that is not known, as
    where more is left of each sample."""
    before = per_sample(job, lengths)
    seconds = per_sample(after, lengths) if before and after.longest <= job.longest else None
    return seconds / before if seconds and before else None


def _device(job: Job, correction: float | None = None) -> tuple[Device | None, tuple[str, ...]]:
    """Rates of the job's machine, and what of them is assumed; none where a DeepSpeed file is not read. Where none are
    published, a correction is that of another device's."""
    machine = job.machine
    if machine is None or (job.zero and job.zero.problem):
        return None, ()
    device, rates = machine.device, machine.device.rates(machine.devices)
    if rates is None and correction is not None:
        device = devices.device(_REFERENCE)[0]
        if rates := device.rates(machine.devices):
            rates = rates._replace(evidence="none")
    if rates and correction is not None:
        rates = rates._replace(correction=correction)
    if rates is None or machine.nodes == 1:
        return rates, ()
    told = _told(job)
    joined = networks.network(told or usual(device.id))
    assumed = () if told else (f"{joined.name} between nodes (`network:` in the header block tells another)",)
    return rates._replace(network=joined.rate), assumed


def _told(job: Job) -> str | None:
    """The network that is named; None where it is not known, which a rule reports."""
    name = job.machine.network if job.machine else None
    try:
        return networks.network(name).name if isinstance(name, str) else None
    except RecipeError:
        return None


def _case(job: Job, lengths: Sequence[float], device: Device, sequences: int | None) -> _Case:
    assert job.model
    work = _with_length(job, lengths)
    step = step_time(job.model.arch, work, device)
    drawn = 1 if job.groups else work.micro_batch
    padded = work.length if job.packs else min(_rounded(longest_of(lengths, drawn)), work.length)
    course = _course(job, lengths, device, sequences)
    run = run_time(step, course, job.model.arch, work, device) if course else None
    return _Case(step, step.tokens * padded / work.length, int(course.steps) if course else None, run)


def _with_length(job: Job, lengths: Sequence[float]) -> Workload:
    """The workload with sequences as long as a step is waited for: devices that spread gradients or weights meet in
    every batch, others once a step. Batches are padded to a multiple of 8 (data/collator.py)."""
    assert job.model
    assert job.workload
    work = job.workload
    if any(each.tokens for each in work.encodings):
        from validator.job import media  # which no model of text asks for

        work = work._replace(encodings=media.as_published(job, job.model, job.published, work.encodings))
    if job.packs:
        return work
    meets = work.sharding.stage >= 2 or work.sharding.fsdp
    micro, devices = (1, 1) if job.groups else (work.micro_batch, work.sharding.world)
    length = waited_for(lengths, micro, devices, 1 if meets else work.accumulation)
    return work._replace(length=min(_rounded(length), work.length))


def _rounded(length: float) -> int:
    return max(8, 8 * math.ceil(length / 8))


def _course(job: Job, lengths: Sequence[float], device: Device, sequences: int | None) -> Course | None:
    """What the run does, with samples of these lengths; None where their number is not known."""
    taken = amount(job)
    mean = sum(lengths) / len(lengths)
    if sequences is None and taken.train is not None:
        sequences = math.ceil(taken.train * mean / job.longest) if job.packs else taken.train
    if sequences is None and job.number("max_steps") <= 0:
        return None
    plan = schedule(job, sequences or 1)
    batch = max(int(job.number("per_device_eval_batch_size")), 1) * job.world
    texts = (taken.train or 0) + taken.held
    return Course(
        steps=plan.total,
        evaluations=_evaluations(job, plan.total, plan.epochs) if taken.held else 0,
        evaluation_batches=math.ceil(taken.held / batch),
        saves=plan.saves,
        checkpoint=job.checkpoint,
        tokenized=0.0 if job.tokenized or job.flag("streaming") else texts * mean * (2 if job.pairs else 1),
        tokenizers=min(max(int(job.number("preprocessing_num_workers")), 1), device.cores),
    )


class Amount(NamedTuple):
    """Samples trained on, None: not known; and those evaluated, as far as known."""

    train: int | None
    held: int


def amount(job: Job) -> Amount:
    """Rows of the data sets as the run takes them (data/loader.py, data_utils.py), else the recommended number."""
    if job.data_rows is None:
        return Amount(None, 0)
    return Amount(job.data_rows - job.held_back, job.held_back + _apart(job))


def _apart(job: Job) -> int:
    """Rows of data sets for evaluation alone, as far as they can be counted."""
    names = dict.fromkeys(job.words("eval_dataset")) if job.registry else {}
    sets = [one for name in names if job.registry and (one := job.registry.get(name))]
    return sum(one.rows.number for one in sets if one.rows)


def _evaluations(job: Job, total: int, epochs: float) -> float:
    """How often the run is evaluated: at each interval, and once more at the end (train/sft/workflow.py). Where no
    interval is named it is that of the log (transformers, training_args.py)."""
    if not job.evaluates:
        return 0
    if job.evaluation == "epoch":
        return math.ceil(epochs) + 1
    every = job.number("eval_steps") or job.number("logging_steps")
    every = math.ceil(total * every) if every < 1 else every
    return (total // every if job.evaluation == "steps" and every else 0) + 1
