"""`lmf-recipes list`"""

from __future__ import annotations

import click

from validator.commands import complete, options
from validator.recipes import catalogue
from validator.show import catalogue as tables
from validator.show import structure


@click.command("list")
@click.option("--machine", metavar="M", callback=options.known, help="Only recipes that run on this machine.")
@click.option("--model", metavar="M", help="Only recipes for this model.", shell_complete=complete.models)
@click.option("--method", metavar="M", help="Only this method or variant: lora, qlora, full, dpo, fsdp, 32k, galore …")
@options.RAM
@options.FORMAT
def command(machine: str | None, model: str | None, method: str | None, host_ram: float | None, form: str) -> None:
    """List the catalogue, or what of it runs on a machine.

    A narrow terminal shows fewer columns; --format json has all.
    """
    rows = catalogue.rows(machine, model, method, host_ram)
    click.echo(structure.text(rows) if form == "json" else tables.text(rows, machine, model), nl=False)
