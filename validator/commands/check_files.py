"""`check` with its options already read. It does not import click, so that hooks start quickly.

validator.__main__ calls it directly for a check without options; commands/check calls it for all others."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

from validator.check import checking as judge
from validator.configuration import NOTHING_ASKED, CommandLine
from validator.escaping import escape_lines
from validator.finding import Report, Severity
from validator.output import findings as reports
from validator.recipe.recipe_file import Document


def check_and_exit(
    paths: Sequence[str],
    machine: str | None = None,
    host_ram: float | None = None,
    form: str = "text",
    trial: judge.Simulate | None = None,
    installed: judge.Installed | None = None,
    asked: CommandLine = NOTHING_ASKED,
) -> NoReturn:
    """Print every finding of the files, and exit with code 1 if one of them is an error, or a warning that counts as
    one. `paths` are files, or names of catalogue recipes. `machine` and `host_ram` replace those of the recipes.
    `trial` adds simulations to a run (None: memory is judged
    by formulas). `installed` are the releases of packages that the run will find (None: not known). `asked` is what
    the command line says about findings."""
    subjects = [resolve_path_or_name(path) for path in paths]
    report = judge.check_files(subjects, machine, host_ram, trial, installed or {}, asked)
    report_and_exit(report, form)


def report_and_exit(report: Report, form: str, stream: TextIO | None = None, failed: bool = False) -> NoReturn:
    """Print the report in the format `form`, to standard output if `stream` is None. Exit with code 1 if the report
    holds an error or a warning that counts as one (`FileReport.strict`), or if `failed` is true because a file could
    not be written."""
    for file in report.files:
        file.raise_strict_warnings()
    if form == "sarif":
        from validator.rules import all_rules

        report.pages = all_rules.rule_pages(report.codes())
    stream = stream or sys.stdout
    stream.write(reports.REPORT_FORMATS[form](report))
    stream.flush()  # so that a full disk is told here, and not when the process ends
    sys.exit(1 if report.count(Severity.ERROR) or failed else 0)


def resolve_path_or_name(path: str) -> str | Document:
    """Return the path unchanged if the file exists or the path is `-` (standard input). Otherwise return the catalogue
    recipe of that name as a document."""
    if path == "-" or os.access(path, os.F_OK):
        return path
    from validator.catalogue import bundled_recipes  # which no hook needs

    if note := bundled_recipes.catalogue_note(path):
        sys.stderr.write(escape_lines([note]))
    return bundled_recipes.open_recipe(path)
