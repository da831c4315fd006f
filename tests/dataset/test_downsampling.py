"""Of more rows than are kept, some stand for all: the figures stay about the same, what stops the run is not lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validator.dataset import user_input
from validator.dataset.data_report import DataReport
from validator.rows import reading_limits

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/dataset/*"])

ROWS = 5000


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_limits, "MAX_SCANNED_ROWS", 300)


def report_on(folder: Path, rows: list[object]) -> DataReport:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return user_input.report_on_source(str(path), None, False)


def row(number: int) -> dict[str, object]:
    """Each tenth row has no answer."""
    return {"instruction": f"Count to {number}.", "output": "one " * (number % 50 + 3) if number % 10 else None}


def test_figures_are_those_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[object] = [row(number // 7) for number in range(ROWS)]
    whole = report_on(tmp_path, rows)
    monkeypatch.setattr(reading_limits, "MAX_SCANNED_ROWS", 300)
    thin = report_on(tmp_path, rows)
    assert thin.rows.read == whole.rows.read == ROWS
    assert thin.rows.trained == pytest.approx(whole.rows.trained, rel=0.05)
    assert thin.drops[0].rows == pytest.approx(whole.drops[0].rows, rel=0.3)
    assert thin.tokens.per_epoch == pytest.approx(whole.tokens.per_epoch, rel=0.1)
    assert not thin.rows.exact
    assert "one in 32 of 5,000 rows was examined, and the counts are multiplied by 32" in thin.notes


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("at", [31, 32, 2999, ROWS - 1])
def test_a_row_that_stops_the_run_is_told_at_its_place(at: int, tmp_path: Path) -> None:
    rows: list[object] = [row(number) for number in range(ROWS)]
    rows[at] = {"instruction": ["no text"], "output": "b"}
    told = str(report_on(tmp_path, rows).problems[0])
    assert f"rows.jsonl:{at + 1}" in told


@pytest.mark.usefixtures("few")
def test_a_row_that_cannot_be_read_is_told_at_its_place(tmp_path: Path) -> None:
    thin = report_on(tmp_path, [*[row(number) for number in range(ROWS)], "no object"])
    assert f"rows.jsonl:{ROWS + 1}" in str(thin.problems[0])
