"""How long a job takes, what it costs, and how much longer or shorter a change makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from validator.advise.change import Change, changed
from validator.advise.explanation import Cost, Span, Step, Time
from validator.job.extent import extent
from validator.job.job import Job
from validator.job.pace import pace, per_sample
from validator.measure import kept
from validator.speed import RunTime

_HOUR = 3600.0
# Of a board's power at most, what a step draws: idle between kernels, or all of it.
_LOAD = (0.6, 0.85, 1.0)


def time(job: Job, energy: bool = False) -> Time | None:
    """How long it takes; None where model, machine or its rates are not known. `energy`: with what the boards draw."""
    correction = kept.correction(str(job.machine))
    known = pace(job, correction=correction)
    if known is None:
        return None
    step, hours = known.step, _hours(known.run)
    return Time(
        step_seconds=Step(step.low, step.expected, step.high, dict(sorted(step.terms.items(), key=lambda p: -p[1]))),
        tokens_per_second=known.tokens_per_second,
        hours=hours,
        device_hours=hours.expected * job.world if hours else None,
        bottleneck=step.bottleneck,
        steps=known.steps,
        parts={part: seconds / _HOUR for part, seconds in known.run.terms.items()} if known.run else {},
        assumed=list(known.assumed),
        few_measurements_of=list(step.gaps),
        energy_kwh=_energy(job, hours) if energy and hours else None,
        correction=correction,
    )


def cost(job: Job, time: Time | None) -> Cost | None:
    """What the hours of all devices cost; None where no price or no number of samples is known."""
    price = job.price
    if price is None or time is None or time.hours is None:
        return None
    low, expected, high = (
        hours * job.world * price.amount for hours in (time.hours.low, time.hours.expected, time.hours.high)
    )
    return Cost(low, expected, high, price.currency)


def timed(job: Job, changes: Sequence[Change]) -> list[Change]:
    """The changes with how much longer each makes the run on the same samples."""
    usual = extent(job).lengths[1]
    before = per_sample(job, usual)
    after = (per_sample(changed(job, each.set), usual) for each in changes) if before else (None for _ in changes)
    return [
        replace(each, time_ratio=seconds / before if before and seconds else None)
        for each, seconds in zip(changes, after, strict=True)
    ]


def _hours(run: RunTime | None) -> Span | None:
    return Span(run.low / _HOUR, run.expected / _HOUR, run.high / _HOUR) if run else None


def _energy(job: Job, hours: Span) -> Span | None:
    watts = job.machine.device.watts if job.machine else None
    if not watts:
        return None
    low, expected, high = (
        each * load * job.world * watts / 1000
        for each, load in zip((hours.low, hours.expected, hours.high), _LOAD, strict=True)
    )
    return Span(low, expected, high)
