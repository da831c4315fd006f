"""benchmarks/robustness/report.py: what it records and prints, and that nothing that was tried has failed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from robustness import report as reliability
from robustness.report import Row


def test_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An area's rows are kept as they were said, and shown."""
    rows = [Row("a file", "is read", 1200, 1, 0.25, 2048.0), Row("a signal", "ends it", 3, 0)]
    stress = ModuleType("robustness.stress_files")
    stress.rows = lambda: iter(rows)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "robustness.stress_files", stress)
    monkeypatch.setattr(reliability, "RECORDS", tmp_path / "reliability")
    reliability.record("files")
    assert reliability.recorded("files") == rows
    shown = list(reliability.lines())
    assert "| a file | is read | 1,200 | 1 | 0.25 | 2,048 |" in shown
    assert "| a signal | ends it | 3 | 0 |  |  |" in shown


def test_what_several_rows_promise_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row("a", "ends", 1, 0), Row("b", "ends", 2, 0), Row("c", "goes on", 3, 0)]
    monkeypatch.setattr(reliability, "recorded", {"signals": rows}.get)
    shown = ["### Signals", "", "Promised, if no other promise is named: ends.", ""]
    shown += ["| what | promised | tried | failed |", "| --- | --- | ---: | ---: |"]
    shown += ["| a |  | 1 | 0 |", "| b |  | 2 | 0 |", "| c | goes on | 3 | 0 |", ""]
    assert list(reliability.lines()) == shown
    del rows[2]
    assert "Promised: ends." in reliability.lines()
    assert "| a | 1 | 0 |" in reliability.lines()


def test_answer(tmp_path: Path) -> None:
    """The real program, its words and what it cost."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text("stage: sft\n")
    ended = reliability.answer(["check", "r.yaml"], cwd=tmp_path)
    assert ended.code == 1
    assert b"r.yaml" in ended.out
    assert not ended.err
    assert ended.seconds > 0
    assert ended.mebibytes > 10


def _kept() -> Iterator[tuple[str, Row]]:
    for area in reliability.AREAS:
        for row in reliability.recorded(area):
            yield area, row


def test_kept() -> None:
    """A record with a failure, or of nothing tried, is no evidence."""
    assert {path.stem for path in reliability.RECORDS.glob("*.csv")} <= set(reliability.AREAS)
    assert [(area, row.what) for area, row in _kept() if row.failed or not row.tried] == []
