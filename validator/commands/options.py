"""Options that several commands share."""

from __future__ import annotations

import click

from validator.diagnostic import RecipeError
from validator.tables import machines

TARGET = "Target, such as 8xascend-910b-64g, 2x8xa100-80g or, by its memory, 1x48g."


def known(_context: click.Context, _parameter: click.Parameter, machine: str | None) -> str | None:
    """A machine on the command line that is not known is wrong usage, not a finding in a file."""
    if machine is not None:
        try:
            machines.machine(machine)
        except RecipeError as err:
            raise click.UsageError(str(err)) from None
    return machine


MACHINE = click.option("--machine", metavar="M", callback=known, help=TARGET)
RAM = click.option("--host-ram", type=click.FloatRange(min=1), metavar="GIB", help="Main memory of a node.")
FORMAT = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Text is default.")
