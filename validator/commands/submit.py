"""`lmf-recipes submit`"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click

from validator.commands import asking, complete, options, ready
from validator.commands.say import say
from validator.diagnostic import RecipeError
from validator.job import job as jobs
from validator.job.job import Job
from validator.judge import check
from validator.read import disk
from validator.read.override import overridden
from validator.read.recipe import SUFFIXES
from validator.recipes.named import named
from validator.submit import kept
from validator.submit.order import Order, Run
from validator.submit.site import Site
from validator.submit.work import work
from validator.train import smoke as smoking

# Hours of two steps, where nobody knows better.
_SMOKE = 1.0
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("submit")
@click.argument("recipe", type=click.Path(), shell_complete=complete.files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--to",
    "engine",
    type=click.Choice(["slurm", "skypilot", "kubernetes"]),
    required=True,
    help="The engine that is to run it.",
)
@click.option("--machine", metavar="M", callback=options.known, help=options.TARGET)
@options.RAM
@click.option("--hours", type=float, callback=options.hours, metavar="H", help="The longest that it may take.")
@click.option("--site", metavar="FILE", type=_FILE, help="Partition, account, set-up lines, variables of your site.")
@click.option("--smoke", is_flag=True, help="Two steps, an evaluation and a save, in a folder beside the output.")
@click.option("--write", metavar="FILE", type=_FILE, help="Keep the job in this file, too.")
@click.option("--dry-run", is_flag=True, help="Print the job instead of submitting it.")
def command(
    recipe: str,
    overrides: Sequence[str],
    engine: str,
    machine: str | None,
    host_ram: float | None,
    hours: float | None,
    site: Path | None,
    smoke: bool,
    write: Path | None,
    dry_run: bool,
) -> None:
    """Check a recipe, and hand it to a scheduler as a job.

    A folder of recipes that are alike becomes one array job of SLURM. Exit code 1 where a recipe has an error, or the
    engine refuses the job. What a site asks for stands in ~/.config/lmf-recipes/site.yaml, such as

    \b
    slurm: {partition: gpu, account: nlp, devices: "gpu:a100:{devices}", hours: 24}
    setup: [module load cuda, source ~/venv/bin/activate]
    environment: {NCCL_SOCKET_IFNAME: ib0}
    """
    if recipe == "-":
        raise click.UsageError("the nodes read the recipe from a file; save it first")
    settings = asking.site(engine, site, ask=not dry_run)
    wanted = _Wanted(overrides, machine, host_ram, hours, settings)
    runs = [_smoke(each, wanted) if smoke else _run(each, wanted) for each in _recipes(recipe)]
    order: Order = import_module(f"validator.submit.{engine}").order(runs, settings)
    for note in order.notes:
        say(note, err=True)
    if write:
        kept.keep(write, order.text)
        say(f"the job is in {write}", err=True)
    if dry_run:
        click.echo(order.text, nl=False)
        return
    for line in order.hand():
        say(line)


def _recipes(recipe: str) -> Iterator[str]:
    """The recipes that a folder holds, else the one that is named."""
    if disk.kind(recipe) != "folder":
        yield recipe
        return
    there = sorted(path for path in check.expand(recipe) if isinstance(path, str) and path.endswith(SUFFIXES))
    if not there:
        raise RecipeError(f"`{recipe}` holds no recipe (.yaml)")
    yield from there


class _Wanted(NamedTuple):
    """What is asked for of all recipes."""

    overrides: Sequence[str]
    machine: str | None
    host_ram: float | None
    hours: float | None
    site: Site

    def resolved(self, path: str, overrides: Sequence[str]) -> Job:
        return jobs.resolve(overridden(path, overrides), self.machine, self.host_ram)


def _run(recipe: str, wanted: _Wanted) -> Run:
    """The run, checked for its machine; ends here, with exit code 1, where it has an error."""
    path, overrides = named(recipe, wanted.overrides)
    document = overridden(path, overrides)
    ready.checked(document, wanted.machine, wanted.host_ram, ("PAR007",))  # variables that the job sets
    job = wanted.resolved(path, overrides)
    ready.tell_of_data(job)
    return Run(job, overrides, work(job, wanted.site, overrides, wanted.hours))


def _smoke(recipe: str, wanted: _Wanted) -> Run:
    """Two steps of the run, which is checked as a whole."""
    whole = _run(recipe, wanted)
    overrides = (*whole.overrides, *smoking.overrides(whole.job))
    job = wanted.resolved(whole.job.path, overrides)
    short = work(job, wanted.site, overrides, wanted.hours)
    limit = wanted.hours if wanted.hours or short.hours else _SMOKE
    return Run(job, overrides, replace(short, name=f"{short.name}-smoke", limit=limit, resumes=False))
