"""A job with other settings: judged by the same formulas and rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from validator.job.job import Job
from validator.tables.checkout import home

# A value that a change writes; None takes the key away.
Setting = bool | int | float | str | None
Settings = Mapping[str, Setting]


def changed(job: Job, settings: Settings) -> Job:
    """The job with the settings, as if the catalogue's DeepSpeed files were there."""
    return _changed(job, tuple(settings.items()))


# The same settings are judged for several questions.
@lru_cache(maxsize=512)
def _changed(job: Job, settings: tuple[tuple[str, Setting], ...]) -> Job:
    made = replace(job, values={**job.values, **dict(settings)}, folders=(*job.folders, home()))
    made.registry = job.registry  # the catalogue's data sets are not there
    return made
