"""The findings of `check` as text, JSON or GitHub annotations; REPORT_FORMATS maps each --format to its function."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from validator import escaping
from validator.escaping import RawText
from validator.finding import Diagnostic, FileReport, Report, Severity
from validator.output import json_output, sarif
from validator.wording import clip, plural

# Longer lines are no help beside a finding.
_MAX_SOURCE_LINE = 200


def format_findings(report: Report) -> str:
    """Return the report as text: one line for each finding, its source line with a caret, and a summary."""
    lines = [line for file in report.files for line in finding_lines(file, len(report.files) > 1)]
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    files = len(report.files)
    numbers = f"{errors} {plural(errors, 'error')}, {warnings} {plural(warnings, 'warning')}"
    fixes = [line for file in report.files for line in _fix_lines(file)]
    end = f"{files} {plural(files, 'file')}: {numbers}{_unjudged_summary(report.files)}"
    return escaping.escape_lines([*lines, *fixes, end, *_fixable_counts(report.files)])


def _fix_lines(file: FileReport) -> Iterator[str]:
    """Yield a line for each finding of a file that was fixed, and a line with the reason for each finding that was
    not."""
    for diagnostic in file.fixed:
        yield f"{file.path}: fixed `{diagnostic.key}` [{diagnostic.code}]"
    for diagnostic, why in file.not_fixed:
        yield f"{file.path}:{diagnostic.line}: left `{diagnostic.key}` [{diagnostic.code}]: {why}"


def _fixable_counts(files: Sequence[FileReport]) -> Iterator[str]:
    """Yield a phrase with the numbers of findings that `--fix` and `--unsafe-fixes` can fix. Files in which a fix was
    tried and not made are left out."""
    fixes = [each.fix for file in files if not file.not_fixed for each in file.diagnostics if each.fix]
    safe = sum(fix.safe for fix in fixes)
    unsafe = len(fixes) - safe
    if safe:
        yield f"{safe} fixable with `--fix`" + (f", {unsafe} more with `--unsafe-fixes`" if unsafe else "")
    elif unsafe:
        yield f"{unsafe} fixable with `--fix --unsafe-fixes`"


def _unjudged_summary(files: Sequence[FileReport]) -> str:
    """Return the part of the summary that says in how many files memory was not judged, and why. For a single file the
    reasons are given in full. The text is empty if memory was judged in every file."""
    gaps = [file.unjudged for file in files if file.unjudged]
    if not gaps:
        return ""
    if len(files) == 1:
        return f"; memory not judged ({'; '.join(gap.reason for gap in gaps[0])})"
    counts = Counter(f"{gap.summary} [{gap.code}]" if gap.code else gap.summary for file in gaps for gap in file)
    reasons = (words if count == len(gaps) else f"{words}: {count}" for words, count in counts.items())
    return f"; memory not judged in {len(gaps)} ({'; '.join(reasons)})"


def finding_lines(file: FileReport, summed: bool = False) -> Iterator[str]:
    """Yield each finding of a file with its source line. If `summed` is true, findings that explain why memory was not
    judged are left out, because the summary states them once for all files."""
    codes_in_summary = {gap.code for gap in file.unjudged} if summed else set()
    for diagnostic in file.diagnostics:
        if diagnostic.code in codes_in_summary:
            continue
        path = diagnostic.path or file.path
        where = f"{path}:{diagnostic.line}:{diagnostic.column}"
        if diagnostic.path is None and (override := file.overrides.get(diagnostic.key or "")):
            where = f"override {clip(override)}"
        yield f"{where}: {diagnostic.severity.value}: {diagnostic.message} [{diagnostic.code}]"
        # The first character of a file is where findings without a place of their own are put.
        if (diagnostic.line, diagnostic.column) != (1, 1):
            yield from _source_line_with_caret(file.sources.get(path, ""), diagnostic.line, diagnostic.column)
        for place in diagnostic.related:
            yield f"    {place.message} at {place.path}:{place.line}:{place.column}"


def _source_line_with_caret(text: str, number: int, column: int) -> Iterator[str]:
    """Yield line `number` of the file's text, where a finding is, and a caret under its column. Yield nothing if the
    line is empty or too long to show."""
    lines = _split_lines(text)
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    if 0 < len(line) <= _MAX_SOURCE_LINE:
        yield f"    {line}"
        yield (
            "    " + "".join(_blanks_as_wide(character) for character in escaping.escape_line(line[: column - 1])) + "^"
        )


@lru_cache(maxsize=2)  # of a file and of one that it names
def _split_lines(text: str) -> list[str]:
    return text.splitlines()


def _blanks_as_wide(character: str) -> str:
    """Return blanks that take the width of a character in a terminal: two for Chinese, otherwise one. A tab stays a
    tab."""
    if character == "\t":
        return "\t"
    return " " * (2 if unicodedata.east_asian_width(character) in "WF" else 1)


def format_findings_json(report: Report) -> RawText:
    """Return the report as JSON (docs/reference/json/check.schema.json)."""
    files = [_file_fields(file) for file in report.files]
    counts = {"errors": report.count(Severity.ERROR), "warnings": report.count(Severity.WARNING)}
    return json_output.format_json({"version": report.version, "files": files, **counts})


def _file_fields(file: FileReport) -> dict[str, object]:
    diagnostics = [_finding_fields(file, diagnostic) for diagnostic in file.diagnostics]
    unjudged = [gap.reason for gap in file.unjudged]
    fixed = [_finding_fields(file, diagnostic) for diagnostic in file.fixed]
    left = [{**_finding_fields(file, diagnostic), "why": why} for diagnostic, why in file.not_fixed]
    fields = {"path": file.path, "kind": file.kind, "diagnostics": diagnostics, "verdict": file.verdict}
    return {**fields, "unjudged": unjudged, "fixed": fixed, "left": left}


def _finding_fields(file: FileReport, diagnostic: Diagnostic) -> dict[str, object]:
    related = [place._asdict() for place in diagnostic.related]
    fix = diagnostic.fix
    edits = {"safe": fix.safe, "edits": [edit._asdict() for edit in fix.edits]} if fix else None
    return {**diagnostic._asdict(), "path": diagnostic.path or file.path, "related": related, "fix": edits}


def format_github(report: Report) -> RawText:
    """Return the report as GitHub's workflow commands, which become annotations on a pull request."""
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
    return RawText(
        "".join(
            f"::{names[d.severity]} file={_escape_for_github(d.path or file.path, True)},line={d.line},col={d.column}"
            f",title={d.code}::{_escape_for_github(d.message)}\n"
            for file in report.files
            for d in file.diagnostics
        )
    )


def _escape_for_github(value: str, in_property: bool = False) -> str:
    value = escaping.escape_text(value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
    return value.replace(":", "%3A").replace(",", "%2C") if in_property else value


REPORT_FORMATS: dict[str, Callable[[Report], str]] = {
    "text": format_findings,
    "json": format_findings_json,
    "github": format_github,
    "sarif": sarif.format_sarif,
}
