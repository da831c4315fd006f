"""The command `list`: the recipes of the catalogue as a table, filtered by machine, model and method."""

from __future__ import annotations

from collections.abc import Sequence

import click

from validator import escaping
from validator.catalogue import bundled_recipes
from validator.catalogue.bundled_recipes import CatalogueRow, HoursRange
from validator.commands import options
from validator.errors import RecipeError
from validator.escaping import shell_join
from validator.knowledge import guidance
from validator.knowledge.devices import parse_machine
from validator.output.terminal import columns_left_out, emit, format_table, print_lines
from validator.plan.new_recipe import PLANNED_STAGES
from validator.plan.other_machines import usual_host_ram
from validator.rules.problems import is_free_of_errors
from validator.run.prediction import predict
from validator.run.recipe_labels import stated_prediction
from validator.run.settings import RunSettings
from validator.wording import two_digits
from validator.wrapping import is_terminal, terminal_width, wrap_lines


@click.command("list")
@click.option("--machine", metavar="M", callback=options.resolve_machine, help="Only recipes that run on this machine.")
@click.option("--model", metavar="M", help="Only recipes for this model.", shell_complete=options.complete_models)
@click.option("--method", metavar="M", help="Only this method or variant: lora, qlora, full, dpo, fsdp, 32k, galore …")
@options.HOST_RAM_OPTION
@options.FORMAT_OPTION
def command(machine: str | None, model: str | None, method: str | None, host_ram: float | None, form: str) -> None:
    """List the catalogue, or what of it runs on a machine.

    A pipe and --format json have all rows and columns. A terminal gets the columns that it has room for, and without a
    filter one row for each machine.
    """
    method = method.lower() if method else None
    if machine and (note := parse_machine(machine).note):
        print_lines(note, err=True)
    rows = bundled_recipes.catalogue_rows(machine, model, method, host_ram)
    if machine and not rows:
        rows = _rows_of_other_devices(machine, model, method, host_ram)
    unfiltered = is_terminal() and not (machine or model or method)
    emit(rows, form, format_machines if unfiltered else lambda rows: format_catalogue(rows, machine, model, method))


def _rows_of_other_devices(
    machine: str, model: str | None, method: str | None, host_ram: float | None
) -> list[CatalogueRow]:
    """Return the recipes that are made for other devices and run on this machine unchanged, judged for it."""
    target = parse_machine(machine, host_ram)
    target = target._replace(host_ram_gib=target.host_ram_gib or usual_host_ram(target))
    runs = bundled_recipes.recipes_on(target, model, method)
    return [
        bundled_recipes.catalogue_row(run, _predicted_hours(run))
        for run in runs
        if predict(run).verdict == "fits" and is_free_of_errors(run)
    ]


def _predicted_hours(run: RunSettings) -> HoursRange | None:
    hours = (stated_prediction(run) or {}).get("hours")
    return HoursRange(*hours) if hours else None


COLUMNS = ("name", "model", "machine", "method", "device_gib", "host_gib", "rows", "hours", "verdict")
# What a narrow terminal does without: the name says the method and the model's size.
OPTIONAL_COLUMNS = ("model", "method", "host_gib", "rows", "hours", "machine", "device_gib")


def format_catalogue(
    rows: Sequence[CatalogueRow], machine: str | None = None, model: str | None = None, method: str | None = None
) -> str:
    """Return the rows as a table. Raises RecipeError if there are no rows; the message names the `plan` command for the
    machine, the model and the method or stage that the user filtered by."""
    if not rows:
        plan_options = {"--model": model, "--machine": machine or ("M" if model else None)}
        plan_options |= {"--method": method if method in guidance.TUNING_METHODS else None}
        plan_options |= {"--stage": method if method in PLANNED_STAGES else None}
        filters = [word for key, value in plan_options.items() if value for word in (key, value)]
        plan = shell_join(["lmf-recipes", "plan", *filters, *(("--write", "FILE.yaml") if model else ())])
        raise RecipeError(f"no recipe matches; `{plan}` makes one in a second, `lmf-recipes list` shows all there are")
    cells = [_row_cells(row) for row in rows]
    left_out = columns_left_out(COLUMNS, cells, OPTIONAL_COLUMNS)
    if machine and rows[0].made_for != rows[0].machine:
        there = str(rows[0].machine)
        left_out.append(
            f"no recipe is made for {there}; these, for other devices, run there unchanged and are judged for it; "
            f"`lmf-recipes copy NAME .` takes one, `--machine {there}` judges the copy for it"
        )
    turns = [f"{row.name}: {one.text}" for row in rows for one in row.assumes]
    return escaping.escape_lines(
        [*format_table(COLUMNS, cells, OPTIONAL_COLUMNS), *wrap_lines(turns, terminal_width()), *left_out]
    )


_MACHINE_COLUMNS = ("machine", "recipes", "models", "methods")


def format_machines(rows: Sequence[CatalogueRow]) -> str:
    """Return one row for each machine of the catalogue, with what there is for it, and the commands that list more."""
    by_machine: dict[str, list[CatalogueRow]] = {}
    for row in rows:
        by_machine.setdefault(str(row.machine), []).append(row)
    cells = [
        (machine, len(there), len({row.model for row in there}), ", ".join(_main_methods(there)))
        for machine, there in sorted(by_machine.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    ]
    lines = [
        f"{len(rows)} recipes; `lmf-recipes list --machine M`, `--model M` or `--method M` shows some of them with "
        "memory, hours and verdict, `lmf-recipes list | less` all",
    ]
    return escaping.escape_lines(
        [*format_table(_MACHINE_COLUMNS, cells, _MACHINE_COLUMNS[:0:-1]), *wrap_lines(lines, terminal_width())]
    )


def _main_methods(rows: Sequence[CatalogueRow]) -> list[str]:
    return sorted({row.method.split("-")[0] for row in rows})


def _row_cells(row: CatalogueRow) -> list[object]:
    hours = {"hours": f"{two_digits(row.hours.low)}-{two_digits(row.hours.high)}" if row.hours else None}
    return [hours.get(title, getattr(row, title)) for title in COLUMNS]
