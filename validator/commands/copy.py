"""`lmf-recipes copy`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from validator.commands import complete, options
from validator.recipes import engine
from validator.recipes.copy import copy
from validator.show import placed

if TYPE_CHECKING:
    from validator.study.own import Own


@click.command("copy")
@click.argument("name", shell_complete=complete.copies)
@click.argument("dest", type=click.Path())
@options.DATA
def command(name: str, dest: str, data: Own | None) -> None:
    """Copy a recipe, with what it reads, to the file or folder DEST.

    NAME may be a DeepSpeed file, too, such as ds_z2.json: it goes into DEST/deepspeed.
    """
    file = engine.known(name)
    if file and data:
        raise click.UsageError(f"--data is for a recipe, and {name} is a DeepSpeed file")
    if file:
        click.echo(placed.engine(engine.copy(file, dest)), nl=False)
    else:
        click.echo(placed.text(copy(name, dest, data), own=data is not None), nl=False)
