"""`lmf-recipes doctor`"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from validator.commands import complete, options
from validator.doctor.examine import examine
from validator.read.override import overridden
from validator.recipes.named import named
from validator.show import doctor as shown
from validator.show import structure


@click.command("doctor")
@click.argument("recipe", type=click.Path(), required=False, shell_complete=complete.files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--machine", metavar="M", callback=options.named, help="Where the run is meant for; default: what is here."
)
@options.FORMAT
def command(recipe: str | None, overrides: Sequence[str], machine: str | None, form: str) -> None:
    """Say whether this machine is fit for a run.

    \b
    lmf-recipes doctor                 what is wrong with this machine
    lmf-recipes doctor RECIPE          would this run fail here, and why

    One line each: found, wanted, what to do. Exit code 1 where a run would fail.
    """
    document = overridden(*named(recipe, overrides)) if recipe else None
    diagnosis = examine(document, None if machine == options.AUTO else machine)
    click.echo(structure.text(diagnosis) if form == "json" else shown.text(diagnosis), nl=False)
    sys.exit(1 if diagnosis.errors else 0)
