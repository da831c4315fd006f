"""The command `submit`: a checked recipe, or a folder of them, handed to SLURM, SkyPilot or Kubernetes as a job.

Settings of the site (partition, account, set-up lines) come from the site file; on a terminal they are asked once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click

from validator.check import checking
from validator.commands import options, preflight
from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.knowledge.file_kinds import RECIPE, kind_of_file
from validator.launch import short_run as smoking
from validator.output.terminal import print_lines
from validator.recipe import atomic_write, safe_read
from validator.run import training_time
from validator.run.settings import RunSettings, resolve
from validator.submit import kubernetes, node_script, skypilot, slurm
from validator.submit import site_file as sites
from validator.submit.cluster_job import RunToSubmit, build_cluster_job
from validator.submit.site_file import Site

# Hours of two steps, where nobody knows better.
_SMOKE_HOURS = 1.0
_SCHEDULERS = {"slurm": slurm.prepare, "skypilot": skypilot.prepare, "kubernetes": kubernetes.prepare}
_FILE_TYPE = click.Path(dir_okay=False, path_type=Path)


@click.command("submit")
@click.argument("recipe", type=click.Path(), shell_complete=options.complete_recipes_and_files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--to",
    "engine",
    type=click.Choice([*_SCHEDULERS], case_sensitive=False),
    required=True,
    help="The engine that is to run it.",
)
@click.option("--machine", metavar="M", callback=options.resolve_machine, help=options.MACHINE_HELP)
@options.HOST_RAM_OPTION
@click.option("--hours", type=float, callback=options.require_hours, metavar="H", help="The longest that it may take.")
@click.option(
    "--site", metavar="FILE", type=_FILE_TYPE, help="Partition, account, set-up lines, variables of your site."
)
@click.option("--smoke", is_flag=True, help="Two steps, an evaluation and a save, in a folder beside the output.")
@click.option("--write", metavar="FILE", type=_FILE_TYPE, help="Keep the job in this file as well.")
@click.option("--dry-run", is_flag=True, help="Submit nothing: print the job, or only --write it.")
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
    paths = [*_recipe_paths(recipe)]
    for path in paths:  # before a word on the site
        options.load_configured(*options.locate_recipe(path, overrides))
    settings = load_or_ask_site(engine, site, ask=not dry_run)
    submit_options = _SubmitOptions(overrides, machine, host_ram, hours, settings)
    runs = [_smoke_run(each, submit_options) if smoke else _checked_run(each, submit_options) for each in paths]
    run = _SCHEDULERS[engine](runs, settings)
    for note in run.notes:
        print_lines(note, err=True)
    if write:
        if run.program:
            node_script.write_program(run.program)
        atomic_write.replace_untouched_file(write, run.text)
        then = f"; start it: {run.start} {shell_quote(str(write))}" if dry_run and run.start else ""
        print_lines(f"the job is in {write}{then}", err=True)
    if dry_run:
        if not write:
            click.echo(run.text, nl=False)
        return
    for line in run.submit():
        print_lines(line)


def _recipe_paths(recipe: str) -> Iterator[str]:
    """Yield the recipes in the folder `recipe`, sorted by path, or `recipe` itself if it is not a folder. Raises
    RecipeError if the folder holds no recipe."""
    if safe_read.path_kind(recipe) != "folder":
        yield recipe
        return
    recipes = sorted(
        path for path in checking.expand_path(recipe) if isinstance(path, str) and kind_of_file(path).name == RECIPE
    )
    if not recipes:
        raise RecipeError(f"`{recipe}` holds no recipe (.yaml)")
    yield from recipes


class _SubmitOptions(NamedTuple):
    """Options of the command that hold for all of its recipes."""

    overrides: Sequence[str]
    machine: str | None
    host_ram: float | None
    hours: float | None
    site: Site

    def resolved(self, path: str, overrides: Sequence[str]) -> RunSettings:
        return resolve(options.load_configured(path, overrides), self.machine, self.host_ram)


def _checked_run(recipe: str, submit_options: _SubmitOptions) -> RunToSubmit:
    """Check a recipe for its machine, print the findings, and return the run with its cluster job. The program ends
    here, with exit code 1, if a finding is an error."""
    path, overrides = options.locate_recipe(recipe, submit_options.overrides)
    document = options.load_configured(path, overrides)
    preflight.require_no_errors(document, submit_options.machine, submit_options.host_ram)
    run = submit_options.resolved(path, overrides)
    preflight.report_data(run)
    for each in training_time.assumed_network(run):
        print_lines(f"the time assumes {each}", err=True)
    return RunToSubmit(run, overrides, build_cluster_job(run, submit_options.site, overrides, submit_options.hours))


def _smoke_run(recipe: str, submit_options: _SubmitOptions) -> RunToSubmit:
    """Return the run of a recipe, shortened to two steps, with its cluster job. The checks are made for the whole
    run."""
    checked = _checked_run(recipe, submit_options)
    overrides = (*checked.overrides, *smoking.smoke_overrides(checked.run))
    run = submit_options.resolved(checked.run.workspace.recipe, overrides)
    short = build_cluster_job(run, submit_options.site, overrides, submit_options.hours)
    limit = submit_options.hours if submit_options.hours or short.hours else _SMOKE_HOURS
    short = replace(short, name=f"{short.name}-smoke", time_limit_h=limit, can_resume=False, checkpoint_interval_s=None)
    return RunToSubmit(run, overrides, short)


def load_or_ask_site(engine: str, file: Path | None, *, ask: bool) -> Site:
    """Return the site's settings from `file` or, if that is None, from the usual file. If the job is for SLURM
    (`engine`), the usual file does not exist and `ask` is true, ask the person at the terminal for settings and save
    them in the usual file. Without a file the settings are empty. Raises RecipeError if a site file cannot be read or
    has a wrong key or value."""
    usual = sites.site_file_path()
    if engine != "slurm" or file or (usual and usual.exists()):
        return sites.read_site(file)
    if not (usual and ask and sys.stdin.isatty() and sys.stderr.isatty()):
        places = f"{usual} or `--site FILE`" if usual else "`--site FILE`"
        print_lines(
            f"no site settings: the job names no partition, account or set-up; write them to {places}", err=True
        )
        return Site()
    atomic_write.create_file(
        usual, sites.site_file_text(*map(_ask, ("Partition", "Account", "Set-up line, such as `source …/activate`")))
    )
    print_lines(f"kept in {usual}; change it there", err=True)
    return sites.read_site(None)


def _ask(what: str) -> str:
    answer: str = click.prompt(f"{what} (none: Enter)", default="", show_default=False, err=True)
    return answer.strip()
