"""`lmf-recipes copy`"""

from __future__ import annotations

import click

from validator.commands import complete
from validator.recipes import engine
from validator.recipes.copy import copy
from validator.show import placed


@click.command("copy")
@click.argument("name", shell_complete=complete.copies)
@click.argument("dest", type=click.Path())
def command(name: str, dest: str) -> None:
    """Copy a recipe, with what it reads, to the file or folder DEST.

    NAME may be a DeepSpeed file, too, such as ds_z2.json: it goes into DEST/deepspeed.
    """
    file = engine.known(name)
    click.echo(placed.engine(engine.copy(file, dest)) if file else placed.text(copy(name, dest)), nl=False)
