"""`check` with its options read: what commands/check.py does, and all that a check without options needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from validator.diagnostic import Report, Severity
from validator.judge import check as judge
from validator.read.recipe import Document
from validator.show import report as reports


def check(
    paths: Sequence[str],
    machine: str | None = None,
    host_ram: float | None = None,
    form: str = "text",
    strict: bool = False,
    select: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
    trial: judge.Trial | None = None,
) -> NoReturn:
    """Print every finding of the files, and exit with 1 where one is an error (with `strict`, a warning)."""
    report = judge.check([subject(path) for path in paths], machine, host_ram, trial)
    if select or ignore:
        from validator.judge.selection import Selection

        Selection(select, ignore).apply(report)
    show(report, form, strict)


def show(report: Report, form: str, strict: bool, stream: TextIO | None = None, failed: bool = False) -> NoReturn:
    """Print the report, and exit with 1 where it holds an error (with `strict`, a warning), or something failed.

    Without a `stream` it goes to standard output."""
    if form == "sarif":
        from validator.rules import manual

        report.pages = manual.pages(report.codes())
    stream = stream or sys.stdout
    stream.write(reports.FORMATS[form](report))
    stream.flush()  # so that a full disk is told here, and not when the process ends
    faults = report.count(Severity.ERROR) or (strict and report.count(Severity.WARNING))
    sys.exit(1 if faults or failed else 0)


def subject(path: str) -> str | Document:
    """The path, or else the recipe of the catalogue that has this name."""
    if path == "-" or os.access(path, os.F_OK):
        return path
    from validator.recipes import named  # which no hook needs

    return named.document(path)
