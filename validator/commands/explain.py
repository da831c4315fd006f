"""`lmf-recipes explain`"""

from __future__ import annotations

from collections.abc import Sequence

import click

from validator.advise.explain import explain
from validator.commands import options
from validator.job import job
from validator.read.override import overridden
from validator.recipes.named import named
from validator.show import chart, structure


@click.command("explain")
@click.argument("recipe", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.MACHINE
@options.RAM
@options.FORMAT
def command(recipe: str, overrides: Sequence[str], machine: str | None, host_ram: float | None, form: str) -> None:
    """Show where every GiB goes, the verdict, and the nearest changes."""
    recipe, overrides = named(recipe, overrides)
    explanation = explain(job.resolve(overridden(recipe, overrides), machine, host_ram), overrides)
    click.echo(structure.text(explanation) if form == "json" else chart.text(explanation), nl=False)
