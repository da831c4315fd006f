"""How many cases a property test draws: few and the same ones for a commit, many new ones at night."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import HealthCheck, settings

AT_NIGHT = 20  # times as many


def examples(number: int, suppress: Collection[HealthCheck] = ()) -> settings:
    """Return settings that draw `number` cases for a commit; a case may take any time."""
    nightly = settings.get_current_profile_name() == "nightly"
    return settings(
        max_examples=number * AT_NIGHT if nightly else number, deadline=None, suppress_health_check=suppress
    )
