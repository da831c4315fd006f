"""`lmf-recipes train`"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

import click

from validator import __version__
from validator.commands import complete, options
from validator.diagnostic import Report, Severity
from validator.job import job as jobs
from validator.job.job import Job
from validator.judge import check
from validator.judge.selection import Selection
from validator.read.override import overridden
from validator.read.recipe import Document
from validator.recipes.named import named
from validator.show import report as reports
from validator.train import folder, handoff, hub, launch, packages, room, start
from validator.train import target as targets
from validator.train.handoff import Handoff
from validator.train.room import Shortage
from validator.train.target import Target

# What an accelerate file says of processes and nodes does not count: the numbers are passed beside it.
_PASSED = Selection(ignore=("PAR305",))


@click.command("train")
@click.argument("recipe", type=click.Path(), shell_complete=complete.files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--machine",
    metavar="M",
    default=options.AUTO,
    callback=options.named,
    help="Judge for this machine; default: the one here.",
)
@options.RAM
@click.option("--dry-run", is_flag=True, help="Check, and print the command instead of running it.")
def command(recipe: str, overrides: Sequence[str], machine: str, host_ram: float | None, dry_run: bool) -> None:
    """Check a recipe for this machine, then start llamafactory-cli.

    Exit code 1 where the recipe has an error, or this machine lacks what it needs; else that of llamafactory-cli.
    """
    if recipe == "-":
        raise click.UsageError("llamafactory-cli reads a recipe from a file; save it first")
    recipe, overrides = named(recipe, overrides)
    document = overridden(recipe, overrides)
    target = _target(document, machine, dry_run)
    ram = target.host_ram_gib if host_ram is None else host_ram
    for line in target.lines:
        click.echo(line, err=True)
    _check(document, target.machine, ram)
    job = jobs.resolve(document, target.machine, ram)
    if target.accelerators or not dry_run:  # else this is not the machine that the run is for
        _tell(room.lacking(job, target.accelerators))
    _tell((*folder.lacking(job), *packages.lacking(job), *hub.lacking(job)), dry_run)
    _tell_of_data(job)
    prepared = handoff.prepare(job, overrides, target.variables)
    if dry_run:
        nodes, _ = handoff.size(job)
        variables = {**prepared.variables, **prepared.chosen}
        words = (str(prepared.recipe), prepared.overrides, nodes, variables, prepared.starter)
        click.echo("\n".join(launch.commands(*words, launch.place(nodes))))
        return
    _run(job, prepared)


def _target(document: Document, machine: str, dry: bool) -> Target:
    if machine == options.AUTO:
        return targets.target(jobs.resolve(document), dry=dry)
    # A dry run may be for another machine.
    return Target(machine) if dry else targets.named(machine, jobs.resolve(document, machine))


def _run(job: Job, prepared: Handoff) -> NoReturn:
    """Train, say where the results are, and end with the trainer's exit code."""
    code = start.start(job, prepared)
    for path in handoff.results(prepared.output) if code == 0 and prepared.output else ():
        click.echo(f"saved: {path}")
    if code:
        click.echo(f"lmf-recipes: {prepared.starter[0]} ended with exit code {code}", err=True)
    sys.exit(code)


def _check(document: Document, machine: str | None, host_ram_gib: float | None) -> None:
    """Show the findings, and why memory was not judged; end here where one is an error."""
    report = Report(__version__, [check.check_document(document, machine, host_ram_gib)])
    _PASSED.apply(report)
    if report.files[0].diagnostics or report.files[0].unjudged:
        click.echo(reports.text(report), nl=False, err=True)
    if report.count(Severity.ERROR):
        sys.exit(1)


def _tell(lacking: Iterable[Shortage], going_on: bool = False) -> None:
    """Say what this machine lacks; end here where the run would stop for it, but for a dry run's `going_on`."""
    shortages = list(lacking)
    for severity, message in shortages:
        stops = going_on and severity is Severity.ERROR
        click.echo(f"{'a run here would stop' if stops else f'this machine: {severity}'}: {message}", err=True)
    if any(severity is Severity.ERROR for severity, _ in shortages) and not going_on:
        sys.exit(1)


def _tell_of_data(job: Job) -> None:
    """Say in short what `data` says of small local data sets; end here where the run would stop at them."""
    from validator.study import brief  # with numpy, which --help does not wait for

    lines, stops = brief.brief(job)
    for line in lines:
        click.echo(line, err=True)
    if stops:
        sys.exit(1)
