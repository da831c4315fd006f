"""Which cases a property test draws: few and the same ones for a commit, many new ones at night."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from random import Random

from hypothesis import HealthCheck, settings

AT_NIGHT = 20  # times as many


def examples(number: int, suppress: Collection[HealthCheck] = ()) -> settings:
    """Return settings that draw `number` cases for a commit; a case may take any time."""
    return settings(
        max_examples=number * AT_NIGHT if _nightly() else number, deadline=None, suppress_health_check=suppress
    )


def chance(seed: int) -> Random:
    """Return a source of draws: the same ones for every commit, and at night those of the day."""
    return Random(f"{seed} {date.today()}" if _nightly() else seed)


def _nightly() -> bool:
    return bool(settings.get_current_profile_name() == "nightly")
