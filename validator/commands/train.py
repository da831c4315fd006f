"""`lmf-recipes train`"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import NoReturn

import click

from validator.commands import complete, options, ready
from validator.commands.say import say
from validator.job import job as jobs
from validator.job.job import Job
from validator.read.override import overridden
from validator.read.recipe import Document
from validator.recipes.named import named
from validator.streams import OutputError
from validator.train import handoff, launch, resume, start
from validator.train import smoke as smoking
from validator.train import target as targets
from validator.train.alone import alone
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
@click.option(
    "--grace",
    metavar="SECONDS",
    type=options.Number(0),
    help="How long a save may take to its end once the run is told to end; default: what one takes, and a minute.",
)
def command(
    recipe: str,
    overrides: Sequence[str],
    machine: str,
    host_ram: float | None,
    dry_run: bool,
    smoke: bool,
    grace: float | None,
) -> None:
    """Check a recipe for this machine, then start llamafactory-cli.

    Ctrl-C, SIGTERM and SIGHUP end the run after a save that is under way, a second Ctrl-C at once. No process is left.

    Exit code 1 where the recipe has an error, or this machine lacks what it needs; 130, 143 or 129 after these signals;
    else that of llamafactory-cli.
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
    prepared = handoff.prepare(job, overrides, target.variables)
    nodes, _ = handoff.size(job)
    # Several nodes share an output folder.
    with alone(prepared.output) if prepared.output and nodes == 1 and not dry_run else nullcontext():
        if not smoke:
            _tell_of_earlier(job, dry_run)
        if not dry_run:
            _run(job, prepared, smoke, grace)
    variables = {**prepared.variables, **prepared.chosen}
    words = (str(prepared.recipe), prepared.overrides, nodes, variables, prepared.starter)
    say(*launch.commands(*words, launch.place(nodes)))


def _target(document: Document, machine: str, dry: bool) -> Target:
    if machine == options.AUTO:
        return targets.target(jobs.resolve(document), dry=dry)
    # A dry run may be for another machine.
    return Target(machine) if dry else targets.named(machine, jobs.resolve(document, machine))


def _tell_of_earlier(job: Job, dry: bool) -> None:
    """Say from what the run goes on; end here where nothing is left to do, with success, so that a job that is started
    again and again comes to its end."""
    for line in resume.told(job, dry=dry):
        say(line, err=True)
    if not dry and resume.finished(job):
        sys.exit(0)


def _run(job: Job, prepared: Handoff, smoke: bool, grace: float | None) -> NoReturn:
    """Train, say where the results are, and end with the trainer's exit code."""
    began = time.monotonic()
    code = start.start(job, prepared, grace)
    for path in handoff.results(prepared.output) if code == 0 and prepared.output else ():
        say(f"saved: {path}")
    if smoke and code == 0 and prepared.output:
        say(smoking.passed(prepared.output, time.monotonic() - began))
    if code:
        said = (_ended(prepared.starter[0], code), None if smoke else resume.again(job))
        with suppress(OutputError):  # the terminal may be gone
            say(f"lmf-recipes: {'; '.join(filter(None, said))}", err=True)
    sys.exit(code)


def _ended(name: str, code: int) -> str:
    asked = {128 + number: number.name for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    return f"ended by {asked[code]}" if code in asked else f"{name} ended with exit code {code}"
