"""`lmf-recipes train`"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from validator import __version__
from validator.diagnostic import Report, Severity
from validator.job import job as jobs
from validator.job.job import Job
from validator.judge import check
from validator.read.override import overridden
from validator.read.recipe import Document
from validator.recipes.named import named
from validator.show import report as reports
from validator.train import handoff, start


@click.command("train")
@click.argument("recipe", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--dry-run", is_flag=True, help="Check, and print the command instead of running it.")
def command(recipe: str, overrides: Sequence[str], dry_run: bool) -> None:
    """Check a recipe, then hand it to llamafactory-cli."""
    if recipe == "-":
        raise click.UsageError("llamafactory-cli reads a recipe from a file; save it first")
    recipe, overrides = named(recipe, overrides)
    document = overridden(recipe, overrides)
    _check(document)
    job = jobs.resolve(document)
    _tell_of_data(job)
    prepared = handoff.prepare(job, overrides)
    if dry_run:
        click.echo("\n".join(handoff.commands(job, str(prepared.recipe), prepared.overrides)))
        return
    code = start.start(job, prepared)
    for path in handoff.results(prepared.output) if code == 0 and prepared.output else ():
        click.echo(f"saved: {path}")
    if code:
        click.echo(f"lmf-recipes: llamafactory-cli ended with exit code {code}", err=True)
    sys.exit(code)


def _check(document: Document) -> None:
    """Show the findings, and why memory was not judged; end here where one is an error."""
    report = Report(__version__, [check.check_document(document)])
    if report.files[0].diagnostics or report.files[0].unjudged:
        click.echo(reports.text(report), nl=False, err=True)
    if report.count(Severity.ERROR):
        sys.exit(1)


def _tell_of_data(job: Job) -> None:
    """Say in short what `data` says of small local data sets; end here where the run would stop at them."""
    from validator.study import brief  # with numpy, which --help does not wait for

    lines, stops = brief.brief(job)
    for line in lines:
        click.echo(line, err=True)
    if stops:
        sys.exit(1)
