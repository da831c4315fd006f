"""How long a run on these data takes, by the lengths that its samples really have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from validator.job.job import Job
from validator.job.pace import pace
from validator.measure import kept
from validator.speed import Span

# So many lengths stand for all: quantiles of them.
_ENOUGH = 500


@dataclass(frozen=True)
class Duration:
    """Of a machine: seconds of a step and hours of the run, each with its 90 % band."""

    machine: str
    step_seconds: Span
    hours: Span


def duration(job: Job, sequences: int, lengths: Sequence[int]) -> Duration | None:
    """The job on so many sequences of these lengths, in tokens. None where no machine is named, or nothing is known of
    its rates or of the model."""
    if not sequences or not lengths:
        return None
    ordered = sorted(lengths)
    quantiles = tuple(ordered[at * len(ordered) // _ENOUGH] for at in range(_ENOUGH))
    found = pace(job, sequences, quantiles, kept.correction(str(job.machine)))
    if found is None or found.hours is None:
        return None
    step = found.step
    return Duration(str(job.machine), _rounded(Span(step.low, step.expected, step.high)), _rounded(found.hours))


def _rounded(span: Span) -> Span:
    return Span(*(float(f"{each:.4g}") for each in span))
