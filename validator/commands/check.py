"""`lmf-recipes check`"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from validator.commands import options
from validator.diagnostic import RecipeError, Severity
from validator.judge import check
from validator.show import report as reports


def _codes(_context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Codes of rules, or their beginnings; one that matches nothing is wrong usage."""
    if not words:
        return ()
    from validator.judge.selection import codes  # which a check of everything does not wait for

    try:
        return codes(words)
    except RecipeError as err:
        raise click.UsageError(str(err)) from None


@click.command("check")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@options.MACHINE
@options.RAM
@click.option("--format", "form", type=click.Choice(list(reports.FORMATS)), default="text", help="Text is default.")
@click.option("--strict", is_flag=True, help="Exit 1 on warnings, too.")
@click.option(
    "--select", multiple=True, metavar="CODES", callback=_codes, help="Only these codes, such as PAR1,TRA009."
)
@click.option("--ignore", multiple=True, metavar="CODES", callback=_codes, help="All codes but these.")
def command(
    paths: Sequence[str],
    machine: str | None,
    host_ram: float | None,
    form: str,
    strict: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
) -> None:
    """Report every problem of recipes and DeepSpeed files (default: recipes/)."""
    report = check.check(paths or ["recipes"], machine, host_ram)
    if select or ignore:
        from validator.judge.selection import Selection

        Selection(select, ignore).apply(report)
    if form == "sarif":
        from validator.rules import manual

        report.pages = manual.pages(report.codes())
    click.echo(reports.FORMATS[form](report), nl=False)
    failed = report.count(Severity.ERROR) or (strict and report.count(Severity.WARNING))
    sys.exit(1 if failed else 0)
