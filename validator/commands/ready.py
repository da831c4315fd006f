"""A recipe that is about to run here: checked, and this machine looked over, before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

from validator import __version__
from validator.commands.say import say
from validator.diagnostic import Report, Severity
from validator.job import job as jobs
from validator.job.job import Job
from validator.judge import check
from validator.judge.selection import STARTED, Selection
from validator.read.recipe import Document
from validator.show import report as reports
from validator.train import folder, hub, packages, ray, room
from validator.train.room import Shortage
from validator.train.target import Target


def ready(document: Document, target: Target, host_ram: float | None, dry: bool = False) -> Job:
    """The job as it runs on the target. Says what is found and what this machine lacks; ends here, with exit code 1,
    where the run would stop for it, but for a `dry` one, which may be for another machine."""
    ram = target.host_ram_gib if host_ram is None else host_ram
    for line in target.lines:
        say(line, err=True)
    checked(document, target.machine, ram)
    job = jobs.resolve(document, target.machine, ram)
    if target.accelerators or not dry:  # else this is not the machine that the run is for
        _tell(room.lacking(job, target.accelerators))
    _tell((*folder.lacking(job), *packages.lacking(job), *ray.lacking(job), *hub.lacking(job)), dry)
    tell_of_data(job)
    return job


def checked(document: Document, machine: str | None, host_ram_gib: float | None, passed: Sequence[str] = ()) -> None:
    """Show the findings but for rules that are `passed`, and why memory was not judged; end here where one is an
    error."""
    report = Report(__version__, [check.check_document(document, machine, host_ram_gib, guarded=False)])
    Selection(ignore=(*STARTED.ignore, *passed)).apply(report)
    if report.files[0].diagnostics or report.files[0].unjudged:
        click.echo(reports.text(report), nl=False, err=True)
    if report.count(Severity.ERROR):
        sys.exit(1)


def _tell(lacking: Iterable[Shortage], going_on: bool = False) -> None:
    """Say what this machine lacks; end here where the run would stop for it, but for a dry run's `going_on`."""
    shortages = list(lacking)
    for severity, message in shortages:
        stops = going_on and severity is Severity.ERROR
        say(f"{'a run here would stop' if stops else f'this machine: {severity}'}: {message}", err=True)
    if any(severity is Severity.ERROR for severity, _ in shortages) and not going_on:
        sys.exit(1)


def tell_of_data(job: Job) -> None:
    """Say in short what `data` says of small local data sets; end here where the run would stop at them."""
    from validator.study import brief  # with numpy, which --help does not wait for

    lines, stops = brief.brief(job)
    for line in lines:
        say(line, err=True)
    if stops:
        sys.exit(1)
