"""The findings of `check` as SARIF 2.1.0 (OASIS), which code scanning services read."""

from __future__ import annotations

import os
from urllib.parse import quote

from validator.escaping import RawText
from validator.finding import Diagnostic, ManualPage, Report
from validator.output import json_output

_SCHEMA_URL = "https://json.schemastore.org/sarif-2.1.0.json"


def format_sarif(report: Report) -> RawText:
    """Return the report of `check` as a SARIF log with one run. The log includes the manual pages of the rules that
    have findings."""
    results = [
        _result_fields(diagnostic.path or file.path, diagnostic)
        for file in report.files
        for diagnostic in file.diagnostics
    ]
    rules = [_rule_descriptor(code, report.pages.get(code)) for code in sorted(report.codes())]
    driver = {"name": "lmf-recipes", "version": report.version, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json_output.format_json({"$schema": _SCHEMA_URL, "version": "2.1.0", "runs": [run]})


def _rule_descriptor(code: str, page: ManualPage | None) -> dict[str, object]:
    """Return a rule as SARIF's reportingDescriptor (section 3.49). If `page` is None, because the rule has no manual
    page, the descriptor holds only the code."""
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


def _result_fields(path: str, diagnostic: Diagnostic) -> dict[str, object]:
    result: dict[str, object] = {
        "ruleId": diagnostic.code,
        "level": diagnostic.severity.value,
        "message": {"text": diagnostic.message},
        "locations": [_location_fields(path, diagnostic.line, diagnostic.column)],
    }
    if diagnostic.related:
        result["relatedLocations"] = [
            {**_location_fields(place.path, place.line, place.column), "message": {"text": place.message}}
            for place in diagnostic.related
        ]
    return result


def _location_fields(path: str, line: int, column: int) -> dict[str, object]:
    region = {"startLine": line, "startColumn": column}
    return {"physicalLocation": {"artifactLocation": {"uri": quote(os.fsencode(path))}, "region": region}}
