"""The verdict on every system of the field reports, and the program that prints them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import fields  # noqa: E402

ROWS = fields.rows()
REPORTED = {
    f"S{report}{row}" for report, last in zip("01234", "fdecf", strict=True) for row in "abcdef"[: ord(last) - 96]
}


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['id']}-{Path(row['file']).stem}")
def test_verdict_is_the_right_one(row: fields.Row) -> None:
    assert list(fields.faults(row, fields.judge(row))) == []


def test_every_row_of_the_reports_is_judged() -> None:
    assert {row["id"] for row in ROWS} == REPORTED


def test_every_refused_case_belongs_to_a_row() -> None:
    cases = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "refused").glob("*.yaml")}
    assert cases == {row["file"] for row in ROWS if row["file"].startswith("tests/")}


def test_a_wrong_verdict_is_seen() -> None:
    wrong = {**ROWS[0], "verdict": "refused", "codes": ["FIT001"], "tells": ["no such words"], "device_gb": [0, 1]}
    assert len(list(fields.faults(wrong, fields.judge(wrong)))) == 4


def test_a_wrong_job_is_seen() -> None:
    row = next(row for row in ROWS if "job" in row)
    wrong = {**row, "job": ["#SBATCH --nodes=1"]}
    assert list(fields.faults(wrong, fields.judge(wrong))) == ["the job lacks `#SBATCH --nodes=1`"]


@pytest.mark.slow
def test_the_program_prints_every_row() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "fields.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" right\n") == len(ROWS) + 1
