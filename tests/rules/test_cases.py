"""What `check` finds in the cases of tests/rules/cases/, in which words, and what whole screens look like.

`pytest tests/rules/test_cases.py --golden` writes the words (golden/messages.txt) and the screens (golden/check/)
anew, to be read as a diff. What a case finds is written by hand; a failing test prints the lines.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from support import cases
from support.cases import Case
from support.every import every

from validator import escaping
from validator.output.findings import REPORT_FORMATS
from validator.rules import all_rules

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
MESSAGES = GOLDEN / "messages.txt"
CASES = {code: list(group) for code, group in groupby(cases.read(), lambda case: case.code)}
CODES = all_rules.all_codes()
SCREENS = [
    ("LOA002-fail-tab", "text"),
    ("LOA002-fail-deep", "text"),
    ("SCH001-fail-typo", "text"),
    ("PTH109-fail-kto", "text"),
    ("FIT001-fail-nothing-helps", "text"),
    ("FIT001-pass-lora", "text"),
    ("TRA304-fail-bnb-5", "text"),
    *(("PAR103-fail-stage", form) for form in REPORT_FORMATS),
]
SUFFIX = {"text": "txt", "json": "json", "github": "github.txt", "sarif": "sarif"}


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> bool:
    """True if what is expected shall be written anew."""
    return bool(request.config.getoption("--golden"))


@pytest.mark.parametrize("code", CODES)
def test_a_rule_finds_what_its_cases_say_in_the_words_that_are_kept(code: str, golden: bool) -> None:
    faults, said = [], set()
    for case in CASES[code]:
        (file,) = cases.judge(case).files
        found = cases.found(case, file)
        if sorted(found) != sorted(case.finds):
            faults.append(f"{case} finds\n  {_lines(found)}\nand not\n  {_lines(case.finds)}")
        said |= {escaping.escape_line(each.message) for each in file.diagnostics if each.code == code}
    kept = _messages()
    if golden:
        MESSAGES.write_text("".join(_section(each, {**kept, code: said}.get(each, set())) for each in CODES), "utf-8")
    elif kept.get(code) != said:
        faults.append(
            f"messages.txt has\n{_section(code, kept.get(code, set()))}where the cases say\n{_section(code, said)}"
        )
    assert not faults, "\n\n".join(faults)


def _lines(found: tuple[str, ...]) -> str:
    return "\n  ".join(found) or "nothing"


def _messages() -> dict[str, set[str]]:
    """The sentences of messages.txt by code."""
    sections = MESSAGES.read_text("utf-8").split("\n\n") if MESSAGES.exists() else []
    lines = [section.strip("\n").split("\n  ") for section in sections]
    return {code: set(sentences) for code, *sentences in lines}


def _section(code: str, sentences: set[str]) -> str:
    return "\n  ".join([code, *sorted(sentences)]) + "\n\n"


@pytest.mark.parametrize(("name", "form"), SCREENS)
def test_a_screen_is_what_it_was(name: str, form: str, golden: bool) -> None:
    report = cases.judge(next(case for case in cases.read() if str(case) == name))
    report.version = "1.2.3"
    path = GOLDEN / "check" / f"{name}.{SUFFIX[form]}"
    if golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(REPORT_FORMATS[form](report), "utf-8")
    assert REPORT_FORMATS[form](report) == path.read_text("utf-8")


def test_each_code_has_both_kinds_of_case() -> None:
    kinds = {code: {case.kind for case in group} for code, group in CASES.items()}
    assert kinds == {code: {"fail", "pass"} for code in CODES}


def test_a_failing_case_finds_its_code_and_a_passing_one_neither_that_nor_an_error() -> None:
    def suits(case: Case) -> bool:
        own = any(line.startswith(("error ", "warning ", "note ")) for line in case.finds)
        return own if case.kind == "fail" else not own and not any(" error " in line for line in case.finds)

    assert [str(case) for case in cases.read() if not suits(case)] == []


def test_lines_of_a_case_stand_where_those_of_the_same_key_stood_or_at_the_end() -> None:
    recipe = "# /// recipe\n# machine: a\n# ///\nstage: sft\nlora:\n  rank: 8\nbf16: true\n"
    lines = "# samples: 5\n# machine: b\nstage: dpo\npref: 1\nlora: {}\n"
    assert cases.changed(recipe, "", []) == recipe
    assert cases.changed(recipe, lines, ["bf16"]) == (
        "# /// recipe\n# machine: b\n# samples: 5\n# ///\nstage: dpo\nlora: {}\npref: 1\n"
    )


@every(CODES)
def test_a_manual_page_says_what_why_and_how_to_fix(code: str) -> None:
    page = all_rules.rule_page(code)
    assert page.violation.endswith(".")
    assert page.why
    assert page.fix
