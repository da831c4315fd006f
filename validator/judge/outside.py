"""What is said of files outside of the repository that is checked (see tables/repository.py), in words that quote
nothing of them."""

from __future__ import annotations

from validator.diagnostic import Diagnostic, FileReport, Gap
from validator.rules import manual


def message(code: str) -> str:
    """The finding in general words: the first line of its manual page."""
    words = manual.page(code).violation.rstrip(".")
    start = words[0].lower() if words.partition(" ")[0].istitle() else words[0]
    return f"{start}{words[1:]}; what stands in files outside of this repository is not shown"


def bounded(report: FileReport) -> FileReport:
    """The report of a file that is a link to one outside: what is wrong and where, without a line or a value of it."""
    found = [_unquoted(each) for each in report.diagnostics]
    gaps = tuple(Gap(gap.words, gap.words, gap.code) for gap in report.unjudged)
    return FileReport(report.path, found, report.verdict, unjudged=gaps)


def _unquoted(diagnostic: Diagnostic) -> Diagnostic:
    return diagnostic._replace(message=message(diagnostic.code), key=None, fix=None)
