"""`lmf-recipes copy`"""

from __future__ import annotations

import click

from validator.commands import complete
from validator.recipes.copy import copy
from validator.show import placed


@click.command("copy")
@click.argument("name", shell_complete=complete.recipes)
@click.argument("dest", type=click.Path())
def command(name: str, dest: str) -> None:
    """Copy a recipe of the catalogue, with what it reads, to the file or folder DEST."""
    click.echo(placed.text(copy(name, dest)), nl=False)
