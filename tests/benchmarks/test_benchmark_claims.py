"""What field reports say of time, beside what is predicted."""

from __future__ import annotations

from typing import Any

import pytest
from accuracy_time import claims

from validator.physics import Band, StepTime, TimeTerm

CLAIMS = claims.claims()


@pytest.mark.parametrize(
    ("says", "ours", "verdict"),
    [
        ([24, 72], (6, 15, 53), "can be right"),
        ([3, 72], (0.8, 2.2, 5), "can be right"),
        ([48, 504], (0.9, 2.1, 3.2), "only with 23,000 to 240,000 samples"),
        ([1, 1], (10, 20, 40), "only with 50 samples"),
    ],
)
def test_whether_hours_can_be_right(says: list[float], ours: tuple[float, float, float], verdict: str) -> None:
    assert claims.hours({"hours": says}, Band(*ours), 1000.0)[-1] == verdict


@pytest.mark.parametrize(("links", "verdict"), [(0.05, "right"), (0.3, "not right")])
def test_whether_communication_takes_less_than_a_share(links: float, verdict: str) -> None:
    step = StepTime({TimeTerm.MATMUL: 1 - links, TimeTerm.COMMUNICATION: links}, 0.9, 1.0, 1.1, tokens=1)
    assert claims.exposed({"exposed": 0.1}, step)[-1] == verdict


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["says"])
def test_each_claim_names_a_run_that_has_a_time(claim: dict[str, Any]) -> None:
    step, hours, samples = claims.judged(claim)
    assert 0 < hours.low < hours.expected < hours.high
    assert step.expected > 0
    assert samples > 0


def test_hours_that_shrink_by_as_much_as_devices_grow_are_set_beside_ours() -> None:
    one, eight = (next(claim for claim in CLAIMS if claim["id"] == name) for name in ("S2x1", "S2x8"))
    text = claims.ratio(eight, one)
    assert text.startswith("theirs is 8.0 times as fast as S2x1, ours ")
    assert 1 < float(text.split()[-1]) < 8
