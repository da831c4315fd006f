"""FORMATS: each a function from Report to text."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Iterator
from urllib.parse import quote

from validator.diagnostic import Diagnostic, FileReport, Report, Severity

# Longer lines are no help beside a finding.
_LONGEST = 200


def text(report: Report) -> str:
    """For people: one line a finding, the source line with a caret, and a sum."""
    lines = [line for file in report.files for line in _file_lines(file)]
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    files = len(report.files)
    lines.append(f"{files} file{_s(files)}: {errors} error{_s(errors)}, {warnings} warning{_s(warnings)}")
    return "\n".join(lines) + "\n"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _file_lines(file: FileReport) -> Iterator[str]:
    source = file.text.splitlines()
    for found in file.diagnostics:
        message = _printable(found.message)
        yield f"{file.path}:{found.line}:{found.column}: {found.severity.value}: {message} [{found.code}]"
        line = source[found.line - 1] if 0 < found.line <= len(source) else ""
        # The first character of a file is where findings without a place of their own are put.
        if (found.line, found.column) != (1, 1) and 0 < len(line) <= _LONGEST:
            yield f"    {_printable(line)}"
            yield "    " + "".join(_blank(character) for character in line[: found.column - 1]) + "^"


def _printable(text: str) -> str:
    """The text on one line, control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def _blank(character: str) -> str:
    """As wide as the character in a terminal; Chinese takes two cells."""
    if character == "\t":
        return "\t"
    return " " * (2 if unicodedata.east_asian_width(character) in "WF" else 1)


def as_json(report: Report) -> str:
    """For programs: the structure fixed in the design."""
    files = [
        {"path": file.path, "diagnostics": [_fields(d) for d in file.diagnostics], "verdict": file.verdict}
        for file in report.files
    ]
    counts = {"errors": report.count(Severity.ERROR), "warnings": report.count(Severity.WARNING)}
    return json.dumps({"version": report.version, "files": files, **counts}, indent=2, ensure_ascii=False) + "\n"


def _fields(found: Diagnostic) -> dict[str, object]:
    return {
        "code": found.code,
        "severity": found.severity.value,
        "message": found.message,
        "line": found.line,
        "column": found.column,
        "key": found.key,
        "help": found.help,
    }


def github(report: Report) -> str:
    """Workflow commands: annotations on a pull request."""
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
    return "".join(
        f"::{names[d.severity]} file={_escape(file.path, True)},line={d.line},col={d.column},title={d.code}"
        f"::{_escape(d.message)}\n"
        for file in report.files
        for d in file.diagnostics
    )


def _escape(value: str, in_property: bool = False) -> str:
    value = value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return value.replace(":", "%3A").replace(",", "%2C") if in_property else value


def sarif(report: Report) -> str:
    """SARIF 2.1.0 (OASIS), for code scanning."""
    results = [_sarif_result(file.path, found) for file in report.files for found in file.diagnostics]
    codes = sorted({d.code: d for file in report.files for d in file.diagnostics}.items())
    rules = [{"id": code, "help": {"text": found.help or found.code}} for code, found in codes]
    driver = {"name": "lmf-recipes", "version": report.version, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _sarif_result(path: str, found: Diagnostic) -> dict[str, object]:
    region = {"startLine": found.line, "startColumn": found.column}
    location = {"physicalLocation": {"artifactLocation": {"uri": quote(os.fsencode(path))}, "region": region}}
    level = found.severity.value
    return {"ruleId": found.code, "level": level, "message": {"text": found.message}, "locations": [location]}


FORMATS: dict[str, Callable[[Report], str]] = {"text": text, "json": as_json, "github": github, "sarif": sarif}
