"""What the five field reports say of time, what we say of the same runs, and whether a report can be right.

    python -m benchmarks time claims

The rows are evidence/time/claims.yaml. The reports give no number of samples: ours is what the recipe of that run
recommends, and where the hours differ, the table says how many samples theirs would need.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rows import EVIDENCE
from score import percent, table

from validator.physics import Band, StepTime, TimeTerm
from validator.recipe.recipe_file import load_with_overrides, with_header_fields
from validator.run.settings import resolve
from validator.run.training_time import predict_training_time

ROOT = Path(__file__).resolve().parents[2]
BETWEEN = (TimeTerm.COMMUNICATION, TimeTerm.NETWORK, TimeTerm.OFFLOAD_COPIES)  # what no computation hides
Claim = Mapping[str, Any]


def claims() -> list[Claim]:
    loaded: list[Claim] = yaml.load((EVIDENCE / "time" / "claims.yaml").read_text("utf-8"), yaml.CSafeLoader)
    return loaded


def judged(claim: Claim) -> tuple[StepTime, Band, float]:
    """Our answer to a claim's run, a step and all hours, and the samples it trains on."""
    document = with_header_fields(
        load_with_overrides(claim["file"], claim.get("set", ())), accelerate=claim.get("accelerate")
    )
    described = resolve(document, machine=claim.get("machine"))
    found = predict_training_time(described)
    assert found is not None
    assert found.hours is not None
    return found.step, found.hours, float(described.header["samples"])


def hours(claim: Claim, ours: Band, samples: float) -> list[str]:
    """Ours beside theirs, and what theirs would need."""
    low, high = claim["hours"]
    if ours.low <= high and low <= ours.high:
        verdict = "can be right"
    else:
        needed = [samples * theirs / ours.expected for theirs in (low, high)]
        verdict = f"only with {' to '.join(dict.fromkeys(map(rounded, needed)))} samples"
    return [span(low, high), f"{ours.expected:.1f} ({ours.low:.1f} to {ours.high:.1f})", f"{samples:,.0f}", verdict]


def rounded(number: float) -> str:
    """To two figures."""
    return f"{float(f'{number:.2g}'):,.0f}"


def span(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def ratio(claim: Claim, other: Claim) -> str:
    """How many times as fast as another run theirs is, and ours."""
    theirs = other["hours"][0] / claim["hours"][0]
    _, ours, _ = judged(claim)
    _, longer, _ = judged(other)
    return f"theirs is {theirs:.1f} times as fast as {other['id']}, ours {longer.expected / ours.expected:.1f}"


def exposed(claim: Claim, step: StepTime) -> list[str]:
    """The share of a step that devices wait for bytes."""
    share = sum(step.terms.get(term, 0.0) for term in BETWEEN) / step.expected
    right = "right" if share <= claim["exposed"] else "not right"
    return [f"{claim['exposed']:.0%} of a step", f"{percent(share)} %", "", right]


def report() -> str:
    known = claims()
    first = {claim["id"]: claim for claim in reversed(known) if "hours" in claim}
    lines = []
    for claim in known:
        step, ours, samples = judged(claim)
        line = exposed(claim, step) if "exposed" in claim else hours(claim, ours, samples)
        if "of" in claim:
            line[-1] += "; " + ratio(claim, first[claim["of"]])
        lines.append([f"{claim['id']:5} {claim['says']}", *line])
    heads = ["the report says", "theirs, h", "ours, h", "samples", "can it be right?"]
    return table("what field reports say of time", heads, lines)


def main() -> None:
    os.chdir(ROOT)
    print(report())
