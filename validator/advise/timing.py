"""How long a job takes, what it costs, and how much longer or shorter a change makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from validator.advise.change import Change
from validator.advise.explanation import Step, Time
from validator.job import pace
from validator.job.changed import changed
from validator.job.extent import extent
from validator.job.job import Job
from validator.job.price import Cost
from validator.measure import kept
from validator.speed import Span

# Of a board's power at most, what a step draws: idle between kernels, or all of it.
_LOAD = (0.6, 0.85, 1.0)


def time(job: Job, energy: bool = False) -> Time | None:
    """How long it takes; None where model, machine or its rates are not known. `energy`: with what the boards draw."""
    correction = kept.correction(str(job.machine))
    known = pace.pace(job, correction=correction)
    if known is None:
        return None
    step, hours = known.step, known.hours
    return Time(
        step_seconds=Step(step.low, step.expected, step.high, dict(sorted(step.terms.items(), key=lambda p: -p[1]))),
        tokens_per_second=known.tokens_per_second,
        hours=hours,
        device_hours=hours.expected * job.world if hours else None,
        bottleneck=step.bottleneck,
        steps=known.steps,
        parts={part: seconds / 3600 for part, seconds in known.run.terms.items()} if known.run else {},
        assumed=list(known.assumed),
        few_measurements_of=list(step.gaps),
        by_length=pace.by_length(job, correction),
        energy_kwh=_energy(job, hours) if energy and hours else None,
        correction=correction,
    )


def cost(job: Job, time: Time | None) -> Cost | None:
    """What the hours of all devices cost; None where no price or no number of samples is known."""
    return job.price.of(job.world, time.hours) if job.price and time and time.hours else None


def timed(job: Job, changes: Sequence[Change]) -> list[Change]:
    """The changes with how many times as long each makes the run."""
    return [replace(each, time_ratio=ratio(job, changed(job, each.set))) for each in changes]


def ratio(job: Job, after: Job) -> float | None:
    """How many times as long another job takes on the same samples, of the usual lengths; None where not known."""
    return pace.ratio(job, after, extent(job).lengths[1])


def _energy(job: Job, hours: Span) -> Span | None:
    watts = job.machine.device.watts if job.machine else None
    if not watts:
        return None
    drawn = hours.times(job.world * watts / 1000)
    return Span(*(each * load for each, load in zip(drawn, _LOAD, strict=True)))
