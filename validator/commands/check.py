"""`lmf-recipes check`"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from validator.commands import options
from validator.diagnostic import Severity
from validator.judge import check
from validator.rules import manual
from validator.show import report as reports


@click.command("check")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@options.MACHINE
@options.RAM
@click.option("--format", "form", type=click.Choice(list(reports.FORMATS)), default="text", help="Text is default.")
@click.option("--strict", is_flag=True, help="Exit 1 on warnings, too.")
def command(paths: Sequence[str], machine: str | None, host_ram: float | None, form: str, strict: bool) -> None:
    """Report every problem of recipes and DeepSpeed files (default: recipes/)."""
    report = check.check(paths or ["recipes"], machine, host_ram)
    if form == "sarif":
        report.pages = manual.pages(report.codes())
    click.echo(reports.FORMATS[form](report), nl=False)
    failed = report.count(Severity.ERROR) or (strict and report.count(Severity.WARNING))
    sys.exit(1 if failed else 0)
