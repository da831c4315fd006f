"""The command `list`: the recipes of the catalogue as a table, filtered by machine, model and method."""

from __future__ import annotations

from collections.abc import Sequence

import click

from validator import escaping
from validator.catalogue import bundled_recipes
from validator.catalogue.bundled_recipes import CatalogueRow
from validator.commands import options
from validator.errors import RecipeError
from validator.escaping import shell_join
from validator.output.terminal import emit, format_table
from validator.wording import two_digits


@click.command("list")
@click.option("--machine", metavar="M", callback=options.resolve_machine, help="Only recipes that run on this machine.")
@click.option("--model", metavar="M", help="Only recipes for this model.", shell_complete=options.complete_models)
@click.option("--method", metavar="M", help="Only this method or variant: lora, qlora, full, dpo, fsdp, 32k, galore …")
@options.HOST_RAM_OPTION
@options.FORMAT_OPTION
def command(machine: str | None, model: str | None, method: str | None, host_ram: float | None, form: str) -> None:
    """List the catalogue, or what of it runs on a machine.

    A narrow terminal shows fewer columns; --format json has all.
    """
    rows = bundled_recipes.catalogue_rows(machine, model, method, host_ram)
    emit(rows, form, lambda rows: format_catalogue(rows, machine, model))


COLUMNS = ("name", "model", "machine", "method", "device_gib", "host_gib", "rows", "hours", "verdict")
# What a narrow terminal does without: the name says the method and the model's size.
OPTIONAL_COLUMNS = ("model", "method", "host_gib", "rows", "hours")


def format_catalogue(rows: Sequence[CatalogueRow], machine: str | None = None, model: str | None = None) -> str:
    """Return the rows as a table. Raises RecipeError if there are no rows; the message names the `plan` command for the
    machine and the model that the user filtered by."""
    if not rows:
        filters = [
            word for key, value in (("--model", model), ("--machine", machine)) if value for word in (key, value)
        ]
        plan = shell_join(["lmf-recipes", "plan", *filters, *(("--write", "FILE.yaml") if model else ())])
        raise RecipeError(f"no recipe matches; `{plan}` makes one in a second, `lmf-recipes list` shows all there are")
    return escaping.escape_lines(format_table(COLUMNS, map(_row_cells, rows), OPTIONAL_COLUMNS))


def _row_cells(row: CatalogueRow) -> list[object]:
    hours = {"hours": f"{two_digits(row.hours.low)}-{two_digits(row.hours.high)}" if row.hours else None}
    return [hours.get(title, getattr(row, title)) for title in COLUMNS]
