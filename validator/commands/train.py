"""`lmf-recipes train`"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import click

from validator.commands import complete, options, ready
from validator.job import job as jobs
from validator.job.job import Job
from validator.read.override import overridden
from validator.read.recipe import Document
from validator.recipes.named import named
from validator.train import handoff, launch, resume, start
from validator.train import smoke as smoking
from validator.train import target as targets
from validator.train.handoff import Handoff
from validator.train.target import Target


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
@click.option("--smoke", is_flag=True, help="Two steps, an evaluation and a save, in a folder beside the output.")
def command(
    recipe: str, overrides: Sequence[str], machine: str, host_ram: float | None, dry_run: bool, smoke: bool
) -> None:
    """Check a recipe for this machine, then start llamafactory-cli.

    Exit code 1 where the recipe has an error, or this machine lacks what it needs; else that of llamafactory-cli.
    """
    if recipe == "-":
        raise click.UsageError("llamafactory-cli reads a recipe from a file; save it first")
    recipe, overrides = named(recipe, overrides)
    document = overridden(recipe, overrides)
    target = _target(document, machine, dry_run)
    job = ready.ready(document, target, host_ram, dry_run)
    if smoke:  # judged as the whole run
        overrides = (*overrides, *smoking.overrides(job))
        job = jobs.resolve(overridden(recipe, overrides), target.machine)
    else:
        _tell_of_earlier(job, dry_run)
    prepared = handoff.prepare(job, overrides, target.variables)
    if dry_run:
        nodes, _ = handoff.size(job)
        variables = {**prepared.variables, **prepared.chosen}
        words = (str(prepared.recipe), prepared.overrides, nodes, variables, prepared.starter)
        click.echo("\n".join(launch.commands(*words, launch.place(nodes))))
        return
    _run(job, prepared, smoke)


def _target(document: Document, machine: str, dry: bool) -> Target:
    if machine == options.AUTO:
        return targets.target(jobs.resolve(document), dry=dry)
    # A dry run may be for another machine.
    return Target(machine) if dry else targets.named(machine, jobs.resolve(document, machine))


def _tell_of_earlier(job: Job, dry: bool) -> None:
    """Say from what the run goes on; end here where nothing is left to do, with success, so that a job that is started
    again and again comes to its end."""
    for line in resume.told(job, dry=dry):
        click.echo(line, err=True)
    if not dry and resume.finished(job):
        sys.exit(0)


def _run(job: Job, prepared: Handoff, smoke: bool) -> NoReturn:
    """Train, say where the results are, and end with the trainer's exit code."""
    began = time.monotonic()
    code = start.start(job, prepared)
    for path in handoff.results(prepared.output) if code == 0 and prepared.output else ():
        click.echo(f"saved: {path}")
    if smoke and code == 0 and prepared.output:
        click.echo(smoking.passed(prepared.output, time.monotonic() - began))
    if code:
        click.echo(f"lmf-recipes: {prepared.starter[0]} ended with exit code {code}", err=True)
    sys.exit(code)
