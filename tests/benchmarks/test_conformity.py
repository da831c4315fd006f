"""Our verdict agrees with what LLaMA-Factory was recorded to do, and the table counts it rightly."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conformity import report as conformity

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def judged() -> list[conformity.Judged]:
    """A sample; `python -m benchmarks conformity --check` judges all."""
    return conformity.judge(27)


def test_nine_in_ten_recipes_of_every_group_were_run() -> None:
    """A case of a rule that is written anew has no outcome until `python -m benchmarks conformity --record`."""
    made = Counter(row.group for row in conformity.rows())
    run = Counter(row.group for row in conformity.rows() if row.outcome)
    assert made.keys() == conformity.GROUPS.keys()
    assert {group: run[group] for group in made if run[group] < 0.9 * made[group]} == {}


@pytest.mark.sample(one_in=3, whole_for=["validator/rules/*"])
def test_what_the_parser_refuses_is_an_error(judged: list[conformity.Judged]) -> None:
    assert [str(each) for each in judged if each.row.outcome == "p" and not each.codes] == []


@pytest.mark.sample(one_in=3, whole_for=["validator/rules/*"])
def test_what_runs_is_no_error(judged: list[conformity.Judged]) -> None:
    assert [str(each) for each in judged if each.row.outcome == "." and each.codes] == []


def test_later_failures_are_foretold(judged: list[conformity.Judged]) -> None:
    late = [each for each in judged if each.row.late]
    missed = [str(each) for each in late if not each.codes]
    assert late
    assert len(missed) <= (1 - conformity.BARS["later"]) * len(late), "\n".join(missed)


@pytest.mark.parametrize(
    ("outcome", "codes", "ok"),
    [
        ("p", ["TRA001"], True),
        ("p", [], False),
        ("s", ["TRA001"], True),
        ("s", [], False),
        (".", [], True),
        (".", ["TRA001"], False),
        ("r", ["TRA001"], True),
        ("x", [], True),
    ],
)
def test_bars(outcome: str, codes: list[str], ok: bool) -> None:
    row = conformity.Row("pair", "name", {}, outcome)
    assert conformity.passed([conformity.Judged(row, codes)]) is ok


@pytest.mark.sample(one_in=3, whole_for=["validator/rules/*"])
def test_an_error_counts_and_a_warning_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conformity.lay_out(tmp_path, None)
    monkeypatch.chdir(tmp_path)
    right = {**conformity.harness.BASE, "model_name_or_path": "model"}
    assert conformity.verdict(right) == []
    assert conformity.verdict({**right, "gradient_checkpointing": False}) == []
    assert conformity.verdict({**right, "leraning_rate": 1e-4}) == ["SCH001"]


@pytest.mark.sample(one_in=3, whole_for=["release/constraints.txt", "benchmarks/conformity/*"])
@pytest.mark.slow
@pytest.mark.real
@pytest.mark.training
def test_a_sample_run_anew_ends_as_recorded() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "conformity",
        "report",
        "--again",
        "8",
        "--record",
        "demo/tiny-qwen3",
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
