"""The findings of `check` as text, JSON or GitHub annotations; REPORT_FORMATS maps each --format to its function."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TextIO

from validator import escaping
from validator.configuration import EffectiveSettings
from validator.escaping import RawText
from validator.finding import Diagnostic, FileReport, Report, Severity
from validator.output import json_output, sarif
from validator.wording import clip, plural
from validator.wrapping import count_columns, terminal_width, wrap_line, wrap_lines

# Longer lines are no help beside a finding.
_MAX_SOURCE_LINE = 200


def format_findings(report: Report, stream: TextIO | None = None) -> str:
    """Return the report as text: one line for each finding, its source line with a caret, and a summary. Lines are
    broken to fit the terminal that `stream` (None: standard output) leads to."""
    width, common_notes = terminal_width(stream), _common_notes(report.files)
    summed = len(report.files) > 1
    lines = [line for file in report.files for line in finding_lines(file, summed, common_notes, width)]
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    files = len(report.files)
    numbers = f"{errors} {plural(errors, 'error')}, {warnings} {plural(warnings, 'warning')}"
    fixes = [line for file in report.files for line in (*_assumption_lines(file), *_fix_lines(file))]
    end = f"{files} {plural(files, 'file')}: {numbers}{_unjudged_summary(report.files)}"
    below = [*fixes, *_note_lines(common_notes), end, *_fixable_counts(report.files)]
    return escaping.escape_lines([*lines, *wrap_lines(below, width)])


_MAX_NAMED = 3  # of messages or places of one note
_Note = tuple[str, str | None]  # its code and key
_Notes = Mapping[_Note, Sequence[tuple[str, Diagnostic]]]


def _common_notes(files: Sequence[FileReport]) -> _Notes:
    """Return the notes that several files have, each with the paths of these files."""
    notes: dict[_Note, list[tuple[str, Diagnostic]]] = {}
    for file in files:
        codes_in_summary = {gap.code for gap in file.unjudged}
        for diagnostic in file.diagnostics:
            if diagnostic.severity is Severity.NOTE and diagnostic.code not in codes_in_summary:
                notes.setdefault((diagnostic.code, diagnostic.key), []).append((file.path, diagnostic))
    return {note: found for note, found in notes.items() if len({path for path, _ in found}) > 1}


def _note_lines(notes: _Notes) -> Iterator[str]:
    """Yield lines for each note that several files have: each of its commonest messages with the files that have it,
    and how many files have another message."""
    for (code, _), found in sorted(notes.items(), key=lambda item: -len(item[1])):
        by_message: dict[str, list[tuple[str, Diagnostic]]] = {}
        for each in found:
            by_message.setdefault(each[1].message, []).append(each)
        messages = sorted(by_message, key=lambda message: -len(by_message[message]))
        for message in messages[:_MAX_NAMED]:
            yield _note_line(code, message, by_message[message])
        if others := [each for message in messages[_MAX_NAMED:] for each in by_message[message]]:
            yield _note_line(code, "the same with other values", others)


def _note_line(code: str, message: str, found: Sequence[tuple[str, Diagnostic]]) -> str:
    """Return a note with the number of files that have it, and the first places."""
    files = len({path for path, _ in found})
    places = [*dict.fromkeys(f"{each.path or path}:{each.line}:{each.column}" for path, each in found)]
    more = f" and {len(places) - _MAX_NAMED} more" if len(places) > _MAX_NAMED else ""
    return f"{files} {plural(files, 'file')}: note: {message} [{code}] at {', '.join(places[:_MAX_NAMED])}{more}"


def _fix_lines(file: FileReport) -> Iterator[str]:
    """Yield a line for each finding of a file that was fixed, and a line with the reason for each finding that was
    not."""
    for diagnostic in file.fixed:
        yield f"{file.path}: fixed `{diagnostic.key}` [{diagnostic.code}]"
    for diagnostic, why in file.not_fixed:
        yield f"{file.path}:{diagnostic.line}: left `{diagnostic.key}` [{diagnostic.code}]: {why}"


def _assumption_lines(file: FileReport) -> Iterator[str]:
    """Yield a line for each thing that the verdict takes for granted and that no finding of the file states."""
    yield from (f"{file.path}: {one.text}" for one in file.assumes if not one.code)


def _fixable_counts(files: Sequence[FileReport]) -> Iterator[str]:
    """Yield a phrase with the numbers of findings that `--fix` and `--unsafe-fixes` can fix. Files in which a fix was
    tried and not made are left out, and files with overrides, which may be what the findings are about."""
    unchanged = (file for file in files if not file.not_fixed and not file.overrides)
    fixes = [each.fix for file in unchanged for each in file.diagnostics if each.fix]
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


def finding_lines(
    file: FileReport, summed: bool = False, common: Container[_Note] = (), width: int | None = None
) -> Iterator[str]:
    """Yield each finding of a file with its source line. If `summed` is true, findings that explain why memory was not
    judged are left out, because the summary states them once for all files; so are the notes in `common`. `width`: the
    columns of a line at most; None for no limit."""
    codes_in_summary = {gap.code for gap in file.unjudged} if summed else set()
    for diagnostic in file.diagnostics:
        is_common = diagnostic.severity is Severity.NOTE and (diagnostic.code, diagnostic.key) in common
        if diagnostic.code in codes_in_summary or is_common:
            continue
        path = diagnostic.path or file.path
        where = f"{path}:{diagnostic.line}:{diagnostic.column}"
        if diagnostic.path is None and (override := file.overrides.get(diagnostic.key or "")):
            where = f"override {clip(override)}"
        found = f"{where}: {diagnostic.severity.value}: {diagnostic.message} [{diagnostic.code}]"
        yield from wrap_line(found, width)
        # The first character of a file is where findings without a place of their own are put.
        if (diagnostic.line, diagnostic.column) != (1, 1):
            yield from _source_line_with_caret(file.sources.get(path, ""), diagnostic.line, diagnostic.column, width)
        for place in diagnostic.related:
            yield f"    {place.message} at {place.path}:{place.line}:{place.column}"


def _source_line_with_caret(text: str, number: int, column: int, width: int | None) -> Iterator[str]:
    """Yield line `number` of the file's text, where a finding is, and a caret under its column. A line that is wider
    than `width` is cut. Yield nothing if the line is empty, too long to show, or cut before the column."""
    lines = _split_lines(text)
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    if not 0 < len(line) <= _MAX_SOURCE_LINE:
        return
    caret = "    " + "".join(_blanks_as_wide(character) for character in escaping.escape_line(line[: column - 1])) + "^"
    shown = f"    {line}"
    if width is not None and count_columns(shown) > width:
        if len(caret) >= width:
            return
        while count_columns(shown) >= width:
            shown = shown[:-1]
        shown += "…"
    yield shown
    yield caret


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
    assumes = [one._asdict() for one in file.assumes]
    return {**fields, "unjudged": unjudged, "fixed": fixed, "left": left, "enough_for_tokens": file.enough_for_tokens,
            "assumes": assumes}  # fmt: skip


def _finding_fields(file: FileReport, diagnostic: Diagnostic) -> dict[str, object]:
    related = [place._asdict() for place in diagnostic.related]
    fix = diagnostic.fix
    edits = {"safe": fix.safe, "edits": [edit._asdict() for edit in fix.edits]} if fix else None
    return {**diagnostic._asdict(), "path": diagnostic.path or file.path, "related": related, "fix": edits}


def format_settings(settings: Sequence[EffectiveSettings]) -> str:
    """Return the settings for each path as text, one line for each that is set, by the names of a configuration
    file."""
    lines = list[str]()
    for each in settings:
        sections = "".join(f", per-folder `{name}`" for name in each.sections)
        lines += [each.path, f"  configuration  {each.configuration or 'none'}{sections}"]
        lines += [f"  {key:<13}  {_setting_text(value)}" for key, value in each.settings.items() if value]
    return escaping.escape_lines(lines)


def _setting_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    texts = value if isinstance(value, (list, tuple)) else [f"{value:g}" if isinstance(value, float) else value]
    return ", ".join("true" if each is True else str(each) for each in texts)


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
