"""The mutation run tells a mutant that a test sees from one that no test sees."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray")
PROGRAM = Path(__file__).parents[2] / "tools" / "mutants.py"

SOURCE = """\
LIMIT = 10

def is_over(number: "int | None") -> bool:
    return number > LIMIT

def never_called():
    while not LIMIT:
        pass
"""
TEST = """\
from small import is_over

def test_what_is_far_over_the_limit_is_over():
    assert is_over(100) and not is_over(0)
"""
OPTION = """\
def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true")
"""
# Text of the line, operator, how manieth: a constant acts at import, a comparison in a process that has imported it.
RESULTS = {
    ("LIMIT = 10", "NumberReplacer", "0"): "survived",
    ("LIMIT = 10", "NumberReplacer", "1"): "survived",
    ("return number > LIMIT", "ReplaceComparisonOperator_Gt_GtE", "0"): "survived",
    ("return number > LIMIT", "ReplaceComparisonOperator_Gt_LtE", "0"): "killed",
    ("while not LIMIT:", "AddNot", "0"): "survived",
    ("while not LIMIT:", "ReplaceUnaryOperator_Delete_Not", "0"): "survived",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = -p xdist.plugin -p no:cacheprovider\n")
    (tmp_path / "conftest.py").write_text(OPTION)
    (tmp_path / "small.py").write_text(SOURCE)
    (tmp_path / "test_small.py").write_text(TEST)
    return tmp_path


def mutate(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program on the tree."""
    command = [sys.executable, str(PROGRAM), "--module", "small.py", "--jobs", "1", "--record", "record.csv", *words]
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = others | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert not done.stderr
    return done


def results(tree: Path) -> dict[tuple[str, str, str], str]:
    """The results that the program recorded."""
    with (tree / "record.csv").open(encoding="utf-8", newline="") as stream:
        return {(row["text"], row["operator"], row["nth"]): row["result"] for row in csv.DictReader(stream)}


@pytest.mark.slow
@pytest.mark.process
def test_a_mutant_is_killed_where_a_test_fails_and_survives_where_none_does(tree: Path) -> None:
    mutate(tree, "--sample", "0")
    assert results(tree) == RESULTS


@pytest.mark.slow
@pytest.mark.process
def test_one_that_was_killed_before_and_survives_is_tried_a_second_time(tree: Path) -> None:
    mutate(tree, "--sample", "0")
    record = (tree / "record.csv").read_text(encoding="utf-8").replace(",survived,", ",killed,")
    (tree / "before.csv").write_text(record, encoding="utf-8")
    done = mutate(tree, "--again", "before.csv")
    assert results(tree) == RESULTS
    survivors = [*RESULTS.values()].count("survived")
    tried = [line for line in done.stdout.splitlines() if line.startswith("mutant ")]
    assert len(tried) == len(RESULTS) + survivors
    assert f"survive now and were killed before: {survivors}\n" in done.stdout
    assert done.returncode == 1
