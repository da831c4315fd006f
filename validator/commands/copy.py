"""The command `copy`: a recipe or a DeepSpeed file of the catalogue, written into the user's folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from validator.catalogue import bundled_recipes, recipe_copy
from validator.catalogue.recipe_copy import copy_recipe
from validator.commands import options, preflight
from validator.output import written_files

if TYPE_CHECKING:
    from validator.run.user_data import UserData


@click.command("copy")
@click.argument("name", shell_complete=options.complete_recipes_and_deepspeed_files)
@click.argument("dest", default=".", type=click.Path())
@options.DATA_OPTION
@options.COLUMNS_OPTION
def command(name: str, dest: str, data: UserData | None, columns: str | None) -> None:  # noqa: ARG001 (read with --data)
    """Copy a recipe, with what it reads, to the file or folder DEST.

    Without DEST, the copy goes into this folder.

    NAME may be a DeepSpeed file, too, such as ds_z2.json: it goes into DEST/deepspeed.
    """
    file = bundled_recipes.find_deepspeed_file(name)
    if file and data:
        raise click.UsageError(f"--data is for a recipe, and {name} is a DeepSpeed file")
    if file:
        click.echo(written_files.format_copied_file(recipe_copy.copy_deepspeed_file(file, dest)), nl=False)
    else:
        placed = copy_recipe(name, dest, data)
        findings, stops = preflight.data_findings(placed.recipe) if data else ([], False)
        click.echo(written_files.format_installed_recipe(placed, data is not None, findings, stops), nl=False)
        sys.exit(1 if stops else 0)
