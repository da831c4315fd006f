"""How long a job may take, and what comes of a limit that is shorter than the run."""

from __future__ import annotations

import math
from collections.abc import Iterator

from validator.diagnostic import RecipeError, plural
from validator.speed import Span
from validator.submit.work import Work

_HOUR = 3600
# The least that is asked for, hours: downloads and a busy file system are in no prediction.
_LEAST = 0.5


def hours(work: Work, most: float = 0.0) -> float:
    """The limit to ask for: that of the user, else the end of the band of the run's hours, which counts its start, but
    no more than a site admits (`most`; 0: any). Raises RecipeError where none of them is known."""
    if work.limit:
        return work.limit
    if work.hours is None:
        if not most:
            raise RecipeError(f"how long {work.name} takes is not known; say `--hours H`, the longest that it may take")
        return most
    wanted = max(work.hours.high, _LEAST)
    return min(wanted, most) if most else wanted


def notice(work: Work, limit: float) -> int:
    """Seconds before the limit, hours, in which another checkpoint is written; ten minutes where that is not known. No
    more than a third of the time."""
    wanted = 600.0 if work.every is None or math.isinf(work.every) else work.every + work.saving + 60
    return int(min(wanted, limit * _HOUR / 3))


def notes(work: Work, limit: float) -> Iterator[str]:
    """What a limit of so many hours means for the run."""
    if work.hours is None or work.hours.high <= limit:
        return
    what = f"{work.name} takes {told(work.hours)} and the limit is {limit:.1f} h"
    if not work.resumes:
        yield f"{what}: it cannot go on from a checkpoint; ask for more by `--hours`"
    elif work.every is not None and work.every > limit * _HOUR:
        apart = (
            "the first checkpoint is written at the end"
            if math.isinf(work.every)
            else (f"checkpoints lie up to {work.every / _HOUR:.1f} h apart")
        )
        yield f"{what}: {apart}, so that it may start anew each time; set a smaller `save_steps`, or `--hours`"
    else:
        yield f"{what}: it is queued again {_times(work.hours, limit)} and goes on from its last checkpoint"


def told(hours: Span) -> str:
    """What is expected, and the band, in minutes where that is short."""
    factor, unit = (60, "min") if hours.high < 1 else (1, "h")
    low, expected, high = (f"{each * factor:.{int(unit == 'h')}f}" for each in hours)
    return f"{expected} {unit} ({low} to {high})"


def _times(hours: Span, limit: float) -> str:
    fewest, most = (max(math.ceil(each / limit) - 1, 0) for each in (hours.expected, hours.high))
    return f"{fewest} to {most} times" if fewest < most else f"{most} {plural(most, 'time')}"
