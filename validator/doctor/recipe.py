"""The recipe itself, as `check` judges it for what the run gets here, and the rows of small local data sets."""

from __future__ import annotations

from collections.abc import Iterator

from validator import __version__
from validator.diagnostic import Diagnostic, Report, Severity, plural
from validator.doctor.line import Line, State
from validator.job.job import Job
from validator.judge import check
from validator.judge.selection import STARTED, Selection
from validator.quoting import quote
from validator.read.recipe import Document
from validator.study import brief

_WHAT = "recipe"
# Of main memory the machine's own is asked (memory.py), and what is free of it.
_ASKED = Selection(ignore=(*STARTED.ignore, "FIT003", "FIT004"))


def lines(document: Document, machine: str | None, host_ram_gib: float | None) -> Iterator[Line]:
    """Each error, and the number of warnings."""
    report = Report(__version__, [check.check_document(document, machine, host_ram_gib, guarded=False)])
    _ASKED.apply(report)
    errors = [each for each in report.files[0].diagnostics if each.severity is Severity.ERROR]
    yield from map(_error, errors)
    warnings = report.count(Severity.WARNING)
    if warnings:
        told = f"`lmf-recipes check {quote(document.path)}` shows them" if document.path != "-" else ""
        yield Line("ok", _WHAT, f"{warnings} {plural(warnings, 'warning')} of `check`", "", told)
    elif not errors:
        yield Line("ok", _WHAT, "nothing is wrong with it")


def _error(finding: Diagnostic) -> Line:
    return Line("error", _WHAT, f"{finding.message} [{finding.code}]")


def rows(job: Job) -> Iterator[Line]:
    """What `data` says of the data sets in short, as `train` does. It starts processes for some, and is therefore none
    of the checks, which run in threads."""
    told, stops = brief.brief(job)
    state: State = "error" if stops else "ok"
    yield from (Line(state, "data", words.removeprefix("data: ")) for words in told)
