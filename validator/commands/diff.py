"""`lmf-recipes diff`"""

from __future__ import annotations

import click

from validator.commands import complete, options
from validator.recipes.compare import compare
from validator.show import comparison, structure


@click.command("diff")
@click.argument("name", shell_complete=complete.files)
@click.argument("file", type=click.Path(), shell_complete=complete.files)
@options.FORMAT
def command(name: str, file: str, form: str) -> None:
    """Show what FILE changed against the recipe NAME.

    Exit code 0 whether or not it did.
    """
    compared = compare(name, file)
    click.echo(structure.text(compared) if form == "json" else comparison.text(compared), nl=False)
