"""Checks before a recipe is started or submitted: findings, this machine's shortages, problems of small data sets.

What would stop the run is printed, and the program ends with exit code 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from validator import dataset
from validator.doctor import start_checks
from validator.doctor.check_result import Check, CheckContext
from validator.escaping import shell_quote
from validator.finding import Severity
from validator.launch.device_allocation import DeviceAllocation
from validator.output import findings as reports
from validator.output.terminal import print_lines
from validator.recipe.recipe_file import Document, load_recipe
from validator.rules.problems import find_problems
from validator.run.settings import RunSettings, resolve


def check_before_start(
    document: Document, target: DeviceAllocation, host_ram: float | None, dry: bool = False
) -> tuple[RunSettings, list[str]]:
    """Return the run as it would run on `target` (the devices that the run gets), after printing findings and what this
    machine lacks, and why the start would be refused. The program ends here, with exit code 1, if it would be. If `dry`
    is true, missing files and packages do not end the program, because the run may be for another machine."""
    ram = target.host_ram_gib if host_ram is None else host_ram
    for note in target.notes:
        print_lines(note.text, err=True)
    require_no_errors(document, target.machine, ram)
    run = resolve(document, target.machine, ram)
    context = CheckContext(allocation=target)
    if target.accelerators or not dry:  # else this is not the machine that the run is for
        _report(start_checks.PREFLIGHT_OF_MACHINE, run, context)
    refusals = [*filter(None, [target.refusal]), *_report(start_checks.PREFLIGHT, run, context, dry)]
    report_data(run)
    return run, refusals


def require_no_errors(document: Document, machine: str | None, host_ram_gib: float | None) -> None:
    """Print the findings about the recipe, and why memory was not judged. The program ends here, with exit code 1, if a
    finding is an error. `machine` and `host_ram_gib` replace the recipe's own (None: keep)."""
    report = start_checks.judge_recipe(document, machine, host_ram_gib)
    if report.files[0].diagnostics or report.files[0].unjudged:
        click.echo(reports.format_findings(report, sys.stderr), nl=False, err=True)
    if report.count(Severity.ERROR):
        sys.exit(1)


def _report(checks: Sequence[Check], run: RunSettings, context: CheckContext, dry: bool = False) -> list[str]:
    """Print warnings and errors of the checks. The program ends here, with exit code 1, if one is an error and the run
    is not a dry one. Return the errors of a dry run instead of printing them."""
    problems = [line for check in checks for line in check(run, context) if line.state != "ok"]
    errors = [line.found for line in problems if line.state == "error"]
    for line in problems:
        if not (dry and line.state == "error"):
            print_lines(f"this machine: {line.state}: {line.found}", err=True)
    if errors and not dry:
        sys.exit(1)
    return errors


def report_data(run: RunSettings) -> None:
    """Print in a few lines what `data` finds in small local data sets. The program ends here, with exit code 1, if the
    run would stop because of them."""
    lines, stops = dataset.summarize_data(run)
    for line in lines:
        print_lines(line, err=True)
    if stops:
        sys.exit(1)


def data_findings(recipe: Path) -> tuple[list[str], bool]:
    """Return in a few lines what `data` finds in the data of a recipe that was just written, and whether the run would
    stop because of them. Of data that are not looked into, because they are large or a package is missing, return what
    `check` estimates that `cutoff_len` cuts."""
    run = resolve(load_recipe(str(recipe)))
    lines, stops = dataset.summarize_data(run)
    looked_into = stops or len(lines) > 1 or any("rows trained" in line for line in lines)
    if looked_into or run.data.local_rows is None:
        return lines, stops
    unread = f"data: not looked into here; `lmf-recipes data {shell_quote(str(recipe))}` does"
    estimated = [f"data: {each.message}" for each in find_problems(run) if each.code == "TRA620"]
    return [*(lines or [unread]), *estimated], False
