"""Times in words."""

from __future__ import annotations

import pytest

from validator import wording


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.034, "0.034 s"), (0.9, "0.9 s"), (3.14, "3.1 s"), (63, "63 s"), (90, "1.5 min"), (600, "10 min"),
        (3599, "60 min"), (5400, "1.5 h"), (86400, "24 h"), (172800, "2.0 days"), (8640000, "100 days"),
    ],
)  # fmt: skip
def test_a_time_has_the_unit_that_suits_it(seconds: float, said: str) -> None:
    assert wording.format_duration(seconds) == said


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (18000, 32400, "5.0 to 9.0 h"), (1.2, 13, "1.2 to 13 s"), (36, 96, "36 s to 1.6 min"),
        (1440, 6480, "24 min to 1.8 h"),
    ],
)  # fmt: skip
def test_a_span_names_a_unit_twice_only_where_it_changes(low: float, high: float, said: str) -> None:
    assert wording.format_duration_range(low, high) == said
