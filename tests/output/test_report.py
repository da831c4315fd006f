"""Every output format against its golden file. `pytest tests/output/test_report.py --golden` rewrites them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest

from validator import escaping
from validator.finding import Diagnostic, FileReport, ManualPage, NotJudged, Related, Report, Severity
from validator.output.findings import REPORT_FORMATS

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
SUFFIX = {"text": "txt", "json": "json", "github": "github.txt", "sarif": "sarif"}
SOURCE = "stage: sfd\n名称: 数据集\nsave_strategy: no\n\toptim: x\nlast: 1\n"

RELATED = (Related("recipes/a b.yaml", 5, 7, "named"), Related("recipes/a b.yaml", 3, 16, "save_strategy set"))
PAGE = ManualPage("choice_refused", Severity.ERROR, "No choice.", "it stops.", "choose.", "No choice.\n\nWhy: …")


def report() -> Report:
    """One of everything that a format must cope with."""
    first = FileReport(
        "recipes/a b.yaml",
        [
            Diagnostic("SCH004", Severity.ERROR, '`stage` is "sfd"', 1, 8, "stage", "use a choice"),
            Diagnostic("TRA001", Severity.WARNING, "wide characters before the caret", 2, 5, "名称"),
            Diagnostic("SCH002", Severity.ERROR, "50 % off: a, b\nand a second line", 3, 16, "save_strategy", "a; b"),
            Diagnostic("LOA002", Severity.ERROR, "a tab \x1b[31m", 4, 2),
            Diagnostic("TRA015", Severity.NOTE, "the whole file"),
            Diagnostic("TRA002", Severity.WARNING, "a line that is not there", 99, 1, "x"),
            Diagnostic("PAR001", Severity.ERROR, "two disagree", 2, 9, "zero", "auto", "zero/中.json", RELATED),
        ],
        "exceeds",
        {"recipes/a b.yaml": SOURCE, "zero/中.json": '{\n  "lr": 1\n}\n'},
    )
    gap = NotJudged("no machine named", "no machine named")
    others = [FileReport("-", [], "fits", {"-": "a: 1\n"}), FileReport("中/b.yaml", [], "unknown", {}, (gap,))]
    return Report("1.2.3", [first, *others], {"SCH004": PAGE})


@pytest.mark.parametrize("form", REPORT_FORMATS)
def test_golden(form: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"report.{SUFFIX[form]}"
    found = REPORT_FORMATS[form](report())
    if request.config.getoption("--golden"):
        path.write_text(found, "utf-8")
    assert found == path.read_text("utf-8")


@pytest.mark.parametrize("form", REPORT_FORMATS)
def test_nothing_found(form: str) -> None:
    assert REPORT_FORMATS[form](Report("1.2.3", [FileReport("x.yaml")])).endswith("\n") == (form != "github")


def test_text_is_one_line_a_finding_with_the_caret_under_the_value() -> None:
    lines = REPORT_FORMATS["text"](report()).splitlines()
    assert lines[:3] == [
        'recipes/a b.yaml:1:8: error: `stage` is "sfd" [SCH004]',
        "    stage: sfd",
        "    " + " " * 7 + "^",
    ]
    # Two Chinese characters, a colon and a space: six cells in a terminal.
    assert lines[5] == "    " + " " * 6 + "^"
    assert "off: a, b\\nand a second line [SCH002]" in lines[6]
    assert "\x1b" not in "".join(lines)
    assert lines[-1] == "3 files: 4 errors, 2 warnings; memory not judged in 1 (no machine named)"


def test_a_very_long_line_is_not_shown() -> None:
    found = FileReport("x", [Diagnostic("A", Severity.ERROR, "m", 1, 3, "k")], sources={"x": "a: " + "x" * 10_000})
    assert len(REPORT_FORMATS["text"](Report("1", [found]))) < 100


def test_one_file() -> None:
    found = Report("1", [FileReport("x", [Diagnostic("A", Severity.ERROR, "m")])])
    assert REPORT_FORMATS["text"](found).endswith("1 file: 1 error, 0 warnings\n")


MACHINE = NotJudged("no machine: give one", "no machine: give one")
MODEL = NotJudged("model not known", "model `x` is not known")
UNJUDGED = [
    ([()], ""),
    ([(), ()], ""),
    ([(MACHINE,)], "; memory not judged (no machine: give one)"),
    ([(MACHINE, MODEL)], "; memory not judged (no machine: give one; model `x` is not known)"),
    ([(MACHINE,), (MACHINE,)], "; memory not judged in 2 (no machine: give one)"),
    ([(MACHINE,), (MACHINE, MODEL), ()], "; memory not judged in 2 (no machine: give one; model not known: 1)"),
    ([(MODEL,), ()], "; memory not judged in 1 (model not known)"),
    ([(MODEL._replace(code="A"),), ()], "; memory not judged in 1 (model not known [A])"),
]


@pytest.mark.parametrize(("gaps", "end"), UNJUDGED)
def test_the_last_line_says_for_how_many_files_memory_was_not_judged_and_why(
    gaps: list[tuple[NotJudged, ...]], end: str
) -> None:
    found = Report("1", [FileReport("x", unjudged=each) for each in gaps])
    assert REPORT_FORMATS["text"](found).endswith(f": 0 errors, 0 warnings{end}\n")


def test_what_the_last_line_tells_of_several_files_is_not_told_of_each() -> None:
    told = FileReport("x", [Diagnostic("A", Severity.NOTE, "m")], unjudged=(MODEL._replace(code="A"),))
    assert "note: m [A]" in REPORT_FORMATS["text"](Report("1", [told]))
    assert REPORT_FORMATS["text"](Report("1", [told, FileReport("y")])).count("\n") == 1


def test_json_has_the_fixed_shape() -> None:
    found = json.loads(REPORT_FORMATS["json"](report()))
    assert list(found) == ["version", "files", "errors", "warnings"]
    assert (found["version"], found["errors"], found["warnings"]) == ("1.2.3", 4, 2)
    assert [list(file) for file in found["files"]] == [
        ["path", "kind", "diagnostics", "verdict", "unjudged", "fixed", "left", "enough_for_tokens", "assumes"]
    ] * 3
    assert list(found["files"][0]["diagnostics"][0]) == [
        "code", "severity", "message", "line", "column", "key", "help", "path", "related", "fix",
    ]  # fmt: skip
    *_, inner = found["files"][0]["diagnostics"]
    assert found["files"][0]["diagnostics"][0]["path"] == "recipes/a b.yaml"
    assert inner["path"] == "zero/中.json"
    assert inner["related"][0] == {"path": "recipes/a b.yaml", "line": 5, "column": 7, "message": "named"}


def annotation(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command taken apart as the runner does: properties at commas, then %XX."""
    assert line.startswith("::")
    head, _, message = line[2:].partition("::")
    command, _, properties = head.partition(" ")
    return command, {k: unquote(v) for k, _, v in (p.partition("=") for p in properties.split(","))}, unquote(message)


def test_github_annotations_can_be_taken_apart_again() -> None:
    found = [annotation(line) for line in REPORT_FORMATS["github"](report()).splitlines()]
    diagnostics = report().files[0].diagnostics
    assert [message for _, _, message in found] == [escaping.escape_text(d.message) for d in diagnostics]
    assert [command for command, _, _ in found] == ["error", "warning", "error", "error", "notice", "warning", "error"]
    assert found[0][1] == {"file": "recipes/a b.yaml", "line": "1", "col": "8", "title": "SCH004"}
    assert found[-1][1]["file"] == "zero/中.json"


def test_sarif_has_what_the_standard_requires() -> None:
    """SARIF 2.1.0, sections 3.13, 3.14, 3.18, 3.19, 3.27, 3.28, 3.29 and 3.30."""
    log: dict[str, Any] = json.loads(REPORT_FORMATS["sarif"](report()))
    assert log["version"] == "2.1.0"
    assert urlparse(log["$schema"]).path.endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
    driver = run["tool"]["driver"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert driver["name"]
    assert len(set(rules)) == len(rules)
    assert len(run["results"]) == 7
    *own, inner = run["results"]
    assert inner["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "zero/%E4%B8%AD.json"
    named, contradicted = inner["relatedLocations"]
    assert named["physicalLocation"]["region"] == {"startLine": 5, "startColumn": 7}
    assert contradicted["message"]["text"] == "save_strategy set"
    for result in own:
        assert result["ruleId"] in rules
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["region"]["startLine"] >= 1
        assert place["region"]["startColumn"] >= 1
        assert place["artifactLocation"]["uri"] == "recipes/a%20b.yaml"


def test_sarif_describes_its_rules() -> None:
    """SARIF 2.1.0, sections 3.49 and 3.50."""
    (run,) = json.loads(REPORT_FORMATS["sarif"](report()))["runs"]
    (described,) = [rule for rule in run["tool"]["driver"]["rules"] if rule["id"] == "SCH004"]
    assert described == {
        "id": "SCH004",
        "name": "choice_refused",
        "shortDescription": {"text": "No choice."},
        "fullDescription": {"text": "No choice. Why: it stops."},
        "help": {"text": "Why: it stops.\nFix: choose.", "markdown": "**Why:** it stops.\n\n**Fix:** choose."},
        "defaultConfiguration": {"level": "error"},
    }


def test_text_shows_the_file_where_the_fault_lies_and_where_it_is_named() -> None:
    lines = REPORT_FORMATS["text"](report()).splitlines()
    assert lines[-6:-1] == [
        "zero/中.json:2:9: error: two disagree [PAR001]",
        '      "lr": 1',
        "            ^",
        "    named at recipes/a b.yaml:5:7",
        "    save_strategy set at recipes/a b.yaml:3:16",
    ]
