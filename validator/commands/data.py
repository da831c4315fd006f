"""`lmf-recipes data`"""

from __future__ import annotations

import sys

import click

from validator.commands import options


@click.command("data")
@click.argument("source", metavar="RECIPE|FILE")
@click.option("--model", metavar="M", help="Such as qwen3-8b; for a data file, or instead of the recipe's.")
@click.option("--near/--no-near", default=None, help="Look for near duplicates; default: up to 200,000 rows.")
@options.FORMAT
@click.option("--html", metavar="FILE", help="Write one self-contained page, too.")
def command(source: str, model: str | None, near: bool | None, form: str, html: str | None) -> None:
    """Show what will be trained: rows, drops, steps, lengths, amount and quality; exit code 1 where the run stops."""
    from validator.study import command as studies  # with numpy, which --help does not wait for

    study = studies.study(source, model, near, html)
    click.echo(studies.FORMATS[form](study), nl=False)
    sys.exit(1 if study["problems"] else 0)
