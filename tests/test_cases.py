"""What `check` prints for the cases of tests/rules/, to the letter. `--golden` writes it anew, to be read as a diff."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from support import cases
from support.cases import Case

from validator.rules import manual

CASES = cases.read()
CODES = manual.codes()
MUTATE = Path(__file__).parent / "support" / "mutate.py"


def suits(case: Case, printed: str) -> bool:
    """Whether a failing case reports its code, and a passing one neither its code nor an error."""
    reported = re.findall(r"^\S.*: (error|warning|note): .* \[(\w+)\]$", printed, re.MULTILINE)
    if case.kind == "fail":
        return case.code in {code for _, code in reported}
    return all(code != case.code and severity != "error" for severity, code in reported)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_check_prints_what_is_expected(case: Case, request: pytest.FixtureRequest) -> None:
    printed = cases.printed(cases.judge(case))
    if request.config.getoption("--golden"):
        cases.rewrite(case, printed)
    else:
        assert printed == case.expected
    assert suits(case, printed), printed


def test_each_code_has_both_kinds_of_case() -> None:
    kinds = {code: {case.kind for case in group} for code, group in groupby(CASES, lambda case: case.code)}
    assert kinds == {code: {"fail", "pass"} for code in CODES}


PAGE = """fail:
  one: # a remark
    recipe: |
      a: 1
    expected:

  two:
    recipe: a
    expected: |
      old

pass:
  one:
    expected: |
      old
    recipe: b
"""


def test_expected_text_is_written_in_its_place_and_all_else_stays(tmp_path: Path) -> None:
    page = tmp_path / "ABC001.yml"
    page.write_text(PAGE)
    for case in cases.read_file(page):
        cases.rewrite(case, "new\n    x\n", tmp_path)
    assert page.read_text() == PAGE.replace("expected:\n", "expected: |\n      old\n").replace(
        "old", "new\n          x"
    )
    assert {case.expected for case in cases.read_file(page)} == {"new\n    x\n"}


@pytest.mark.slow
def test_a_change_of_a_message_position_or_severity_is_seen() -> None:
    done = subprocess.run([sys.executable, MUTATE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("code", CODES)
def test_a_manual_page_says_what_why_and_how_to_fix(code: str) -> None:
    page = manual.page(code)
    assert page.violation.endswith(".")
    assert page.why
    assert page.fix
