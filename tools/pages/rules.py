"""docs/reference/rules/: a page for each family of rules, with the manual page of each, a case that it reports and the
lines that would silence it.

The examples are cases of tests/rules/cases/, run for this page.
"""

from __future__ import annotations

import difflib
import itertools
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from validator.output.findings import format_findings
from validator.rules import all_rules

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support import cases  # noqa: E402
from support.cases import Case  # noqa: E402

FAMILIES = {
    "LOA": "The file",
    "SCH": "Keys and values",
    "PTH": "Paths and data sets",
    "FIT": "Memory and disk",
    "DEV": "Devices",
    "PAR": "DeepSpeed, FSDP, several devices",
    "TRA": "Training",
    "DAT": "Amount of data",
    "CUR": "This repository",
}
# The codes of LOA and SCH come up while a file is read and its keys are judged, by no function of their own.
PLACES = {rule.code: rule.check.__module__.replace(".", "/") + ".py" for rule in all_rules.RULES}
# A remedy in more lines than this is another recipe, which does not show what silences the rule.
LONGEST = 6


@cache
def cases_by_code() -> dict[str, list[Case]]:
    """Every case of tests/rules/cases/, by the code that it is about."""
    by_code: dict[str, list[Case]] = {}
    for case in cases.read():
        by_code.setdefault(case.code, []).append(case)
    return by_code


def index() -> str:
    """The table of docs/reference/rules/README.md: a row for each rule, by family."""
    return "\n".join(line for family in FAMILIES for line in _index_rows(family))


def _index_rows(family: str) -> Iterator[str]:
    yield from (
        f"## [{family}]({family}.md): {FAMILIES[family]}",
        "",
        "| rule | severity | reports |",
        "| --- | --- | --- |",
    )
    for code in codes(family):
        page = all_rules.rule_page(code)
        link = f"[{code}]({family}.md#{code.lower()}-{page.name})"
        yield f"| {link} | {page.severity.value} | {page.violation.replace('|', chr(92) + '|')} |"
    yield ""


def codes(family: str) -> list[str]:
    """The codes of a family, in their order."""
    return [code for code in all_rules.all_codes() if code.startswith(family)]


def page(family: str) -> str:
    """The manual page of each rule of a family, with its example, for docs/reference/rules/<FAMILY>.md."""
    return "\n".join(line for code in codes(family) for line in _rule(code))


def _rule(code: str) -> Iterator[str]:
    page = all_rules.rule_page(code)
    place = f", in `{PLACES[code]}`" if code in PLACES else ""
    yield from (f"## {code} {page.name}", "", f"*{page.severity.value}{place}.* {_paragraphs(page.text)}", "")
    yield from _example(code, cases_by_code()[code])


def _paragraphs(text: str) -> str:
    """The manual page as Markdown, one paragraph for each of its parts."""
    joined = "\n".join(line.strip() for line in text.splitlines())
    for word in ("Why:", "Source:", "Fix:", "Seen with:"):
        joined = joined.replace(f"\n{word}", f"\n\n**{word.rstrip(':')}.**")
    return joined.replace("\n\n\n", "\n\n")


def _example(code: str, found: list[Case]) -> Iterator[str]:
    """What `check` says to the first failing case, and the lines of the passing case nearest to it that differ."""
    failing = next(case for case in found if case.kind == "fail")
    yield from ("```text", *_finding(code, format_findings(cases.judge(failing))), "```", "")
    remedies = (_changed(failing, case) for case in found if case.kind == "pass")
    remedy = min((lines for lines in remedies if 0 < len(lines) <= LONGEST), key=len, default=None)
    if remedy:
        yield from ("```diff", *remedy, "```", "")


def _finding(code: str, printed: str) -> Iterator[str]:
    """The first finding of this code, with the lines that `check` shows below it."""
    lines = itertools.dropwhile(lambda line: not line.endswith(f"[{code}]"), printed.splitlines())
    yield next(lines)
    yield from itertools.takewhile(lambda line: line.startswith("    "), lines)


def _changed(failing: Case, passing: Case) -> list[str]:
    """What to change in the one to get the other, as lines of a diff; empty where they are not text, or
    where other files make the difference."""
    if [at for at in failing.files if at != failing.path] or [at for at in passing.files if at != passing.path]:
        return []
    try:
        before, after = (case.files[case.path].decode().splitlines() for case in (failing, passing))
    except UnicodeDecodeError:
        return []
    return [line for line in difflib.ndiff(before, after) if line[:2] in ("- ", "+ ")]
