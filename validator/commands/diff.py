"""`lmf-recipes diff`"""

from __future__ import annotations

import json

import click

from validator.commands import complete, options
from validator.recipes import comparison


@click.command("diff")
@click.argument("name", shell_complete=complete.recipes)
@click.argument("file", type=click.Path())
@options.FORMAT
def command(name: str, file: str, form: str) -> None:
    """Show what FILE changed against the recipe NAME of the catalogue (exit code 0 whether or not it did)."""
    difference = comparison.compare(name, file)
    click.echo(json.dumps(difference, indent=2) if form == "json" else comparison.text(difference), nl=form == "json")
