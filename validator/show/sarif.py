"""SARIF 2.1.0 (OASIS), for code scanning."""

from __future__ import annotations

import os
from urllib.parse import quote

from validator.diagnostic import Diagnostic, Page, Report
from validator.printable import Exact
from validator.show import structure

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(report: Report) -> Exact:
    """The log of one run, with the pages of the rules that found something."""
    results = [
        _result(diagnostic.path or file.path, diagnostic) for file in report.files for diagnostic in file.diagnostics
    ]
    rules = [_rule(code, report.pages.get(code)) for code in sorted(report.codes())]
    driver = {"name": "lmf-recipes", "version": report.version, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return structure.text({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(code: str, page: Page | None) -> dict[str, object]:
    """A reportingDescriptor (section 3.49)."""
    if page is None:
        return {"id": code}
    return {
        "id": code,
        "name": page.name,
        "shortDescription": {"text": page.violation},
        "fullDescription": {"text": f"{page.violation} Why: {page.why}"},
        "help": {
            "text": f"Why: {page.why}\nFix: {page.fix}",
            "markdown": f"**Why:** {page.why}\n\n**Fix:** {page.fix}",
        },
        "defaultConfiguration": {"level": page.severity.value},
    }


def _result(path: str, diagnostic: Diagnostic) -> dict[str, object]:
    result: dict[str, object] = {
        "ruleId": diagnostic.code,
        "level": diagnostic.severity.value,
        "message": {"text": diagnostic.message},
        "locations": [_location(path, diagnostic.line, diagnostic.column)],
    }
    if diagnostic.related:
        result["relatedLocations"] = [
            {**_location(place.path, place.line, place.column), "message": {"text": place.message}}
            for place in diagnostic.related
        ]
    return result


def _location(path: str, line: int, column: int) -> dict[str, object]:
    region = {"startLine": line, "startColumn": column}
    return {"physicalLocation": {"artifactLocation": {"uri": quote(os.fsencode(path))}, "region": region}}
