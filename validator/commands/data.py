"""The command `data`: what LLaMA-Factory will train on, or a data file registered in dataset_info.json."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from validator import dataset
from validator.catalogue.bundled_recipes import LocatedRecipe, catalogue_note, locate_file
from validator.commands import options
from validator.errors import RecipeError
from validator.knowledge.devices import is_machine
from validator.knowledge.near_models import near_models
from validator.output.terminal import emit, print_lines
from validator.recipe import atomic_write


@click.command("data")
@click.argument("source", metavar="RECIPE|FILE")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--model", metavar="M", help="Such as qwen3-8b; for a data file, or instead of the recipe's.")
@options.MACHINE_OPTION
@click.option("--near/--no-near", default=None, help="Look for near duplicates; default: up to 200,000 rows.")
@options.FORMAT_OPTION
@click.option("--html", metavar="FILE", help="Write one self-contained page, too.")
@click.option("--register", metavar="NAME", help="Write the file's entry into dataset_info.json instead.")
@options.COLUMNS_OPTION
@click.option("--dataset-dir", metavar="DIR", help="Folder of that dataset_info.json; default: data, or beside FILE.")
def command(
    source: str,
    overrides: tuple[str, ...],
    model: str | None,
    machine: str | None,
    near: bool | None,
    form: str,
    html: str | None,
    register: str | None,
    columns: str | None,
    dataset_dir: str | None,
) -> None:
    """Show what will be trained: rows, drops, steps, lengths, quality.

    Exit code 1 where the run stops.
    """
    options.require_settings(source, overrides)
    dataset.require_packages("`data`")
    from validator.dataset import data_page, data_text, user_input

    named = options.named_columns_of(columns)
    if register is not None:
        folder = Path(dataset_dir) if dataset_dir else None
        done = user_input.register_data(Path(source), register, folder, named)
        emit(done, form, data_text.format_registration)
        return
    if html:
        data_page.require_page_target(Path(html))
    if note := catalogue_note(source):
        print_lines(note, err=True)
    path, overrides = _locate_source(source, overrides)
    report = user_input.report_on_source(path, model, near, overrides, machine, named)
    try:
        if html:
            # Names of files need not be UTF-8; a page shows such characters as numbers.
            page = data_page.format_page(report).encode("utf-8", "xmlcharrefreplace")
            atomic_write.replace_own_file(Path(html), page, data_page.is_own_page, data_page.NO_OWN_PAGE)
    finally:  # what took minutes is shown, also where the page finds no room
        emit(report, form, data_text.format_report)
    sys.exit(1 if report.problems else 0)


def _locate_source(source: str, overrides: tuple[str, ...]) -> LocatedRecipe:
    """Return the file for which the argument stands, with the overrides to apply. Raises RecipeError, with what
    the command takes, if there is none."""
    try:
        return locate_file(source, overrides)
    except RecipeError as err:
        if is_machine(source) or near_models(source):
            raise
        remedy = "`data` takes a recipe or a file of data, and no name of a data set: name a recipe that has it"
        raise RecipeError(f"{err}; {remedy}") from None
