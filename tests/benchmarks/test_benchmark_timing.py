"""The report on time: errors, bands and bars of rows beside their predictions."""

from __future__ import annotations

import pytest
from accuracy_time import paced, refit, times
from accuracy_time import report as timing

from validator.physics import StepTime, TimeTerm

BY_ID = {row.id: row for row in times.published()[0]}


def timed(name: str, low: float, expected: float, high: float) -> timing.Timed:
    """A row beside a prediction that is given in shares of what was measured."""
    seconds = BY_ID[name].seconds
    terms = {TimeTerm.MATMUL: expected * seconds}
    return timing.Timed(BY_ID[name], StepTime(terms, low * seconds, expected * seconds, high * seconds, tokens=1))


@pytest.mark.parametrize(
    ("name", "band", "error", "covered"),
    [
        ("fms-017", (0.9, 1.1, 1.3), 0.1, True),
        ("fms-017", (1.1, 1.2, 1.3), 0.2, False),
        ("fms-017", (0.5, 0.7, 0.9), -0.3, False),
    ],
)
def test_error_and_band_of_a_row(name: str, band: tuple[float, float, float], error: float, covered: bool) -> None:
    item = timed(name, *band)
    assert item.error == pytest.approx(error)
    assert item.covered is covered


def test_samples_of_unknown_length_take_from_a_tenth_of_the_maximum_to_all_of_it() -> None:
    row = BY_ID["alpacalora-001"]
    step, whole = timing.judge(row).step, timing.estimate_step_time(row.architecture, row.workload, row.device)
    assert step.high == whole.high
    assert step.low < step.expected < whole.expected
    assert timing.shortened(row.workload, 0.25).length > 0.25 * row.workload.length  # padded to the longest of eight


def test_a_network_that_no_one_tells_widens_the_band() -> None:
    told, guessed = BY_ID["foundry-115"], BY_ID["swift-015"]
    assert (told.guessed, guessed.guessed) == (False, True)
    plain = timing.estimate_step_time(guessed.architecture, guessed.workload, guessed.device)
    assert timing.judge(guessed).step.high > 1.05 * plain.high


def test_a_bar_that_is_missed_is_named() -> None:
    good = [timed(name, 0.8, 1.05, 1.3) for name in ("fms-017", "peftmm-033", "foundry-010", "phill4-004")]
    assert timing.MISSED not in timing.bars(good)
    assert timing.MISSED in timing.bars([timed("fms-019", 0.3, 0.5, 0.7), *good[1:]])


def test_rows_of_doubt_are_in_no_bar_of_exact_rows() -> None:
    assert not timed("swift-025", 1, 1, 1).exact
    assert timed("fms-017", 1, 1, 1).exact


def test_rivals_are_judged_on_the_rows_they_answer() -> None:
    assert "FLOPs at 40% of the rate" in timing.rivals([timed("fms-017", 0.9, 1.0, 1.1)])
    answers = paced.answers([BY_ID["fms-017"]])
    assert {name.split()[0] for name in answers} == {"FLOPs", "soup-cli", "ftuneai"}


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("fms-017", 1.0),  # dense: all parameters meet each token
        ("ktfull-001", 0.11),  # 30B of which 3.3B are active
    ],
)
def test_parameters_that_a_token_meets(name: str, share: float) -> None:
    row = BY_ID[name]
    assert paced.active(row) / paced.parameter_count(row.architecture) == pytest.approx(share, abs=0.01)


def test_constants_that_are_fitted_anew_exist_and_matter() -> None:
    rows = [BY_ID[name] for name in ("fms-017", "qwenreadme-001", "dsex-001", "fms-122", "peftmm-033", "foundry-096")]
    used = refit.errors(rows, {})
    for name, choices in refit.CHOICES.items():
        assert refit.errors(rows, {name: choices[0]}) != used, name
    assert refit.errors(rows, {}) == used  # and are put back


def test_a_source_is_scored_by_constants_that_it_did_not_shape() -> None:
    known = [row for row in BY_ID.values() if row.known]
    assert {row.kind for row in known} == {"exact", "mean"}
    assert refit.source(BY_ID["fms-130"]) == refit.source(BY_ID["fms-017"])  # fused kernels or not
    names = ("fms-017", "fms-019", "foundry-096", "foundry-100")
    shown = refit.holdout([BY_ID[name] for name in names])
    assert "fms packed" in shown
    assert "llm-foundry" in shown
