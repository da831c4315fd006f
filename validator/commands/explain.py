"""The command `explain`: where memory and time of a run go, its verdict, and what would fit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import click

from validator import escaping
from validator.advise.explanation import MEMORY_CODES, explain
from validator.check.checking import check_recipe
from validator.commands import options
from validator.finding import FileReport, Severity
from validator.output import explain_summary, explain_text, findings
from validator.output.terminal import emit
from validator.recipe.recipe_file import with_header_fields, with_missing_header_fields
from validator.wrapping import terminal_width

# Changes that are simulated, where what the run needs is: each takes seconds.
_MAX_SIMULATED_CHANGES = 6
# How codes of warnings begin that are shown as errors are: what a device cannot do, and images that may be cut.
_SHOWN_WARNINGS = ("DEV", "TRA916")


@click.command("explain")
@click.argument("recipe", type=click.Path(), shell_complete=options.complete_recipes_and_files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.MACHINE_OPTION
@options.HOST_RAM_OPTION
@options.NETWORK_OPTION
@options.PRICE_OPTION
@click.option("--energy", is_flag=True, help="With the kWh that the boards draw.")
@click.option("--full", is_flag=True, help="Every term of memory and time, all changes, the launch commands.")
@options.SIMULATE_OPTION
@options.FORMAT_OPTION
def command(
    recipe: str,
    overrides: Sequence[str],
    machine: str | None,
    host_ram: float | None,
    network: str | None,
    price: str | None,
    energy: bool,
    full: bool,
    simulate: bool,
    form: str,
) -> None:
    """Show the verdict, where memory and time go, and what would fit.

    Without --full in a dozen lines; --format json has all. Exit code 1 where `check` ends so.
    """
    recipe, overrides = options.locate_recipe(recipe, overrides)
    with options.open_simulator(simulate, _MAX_SIMULATED_CHANGES) as trial:
        document = with_header_fields(options.load_configured(recipe, overrides), network=network, price=price)
        document = with_missing_header_fields(document, options.installed_releases())
        report, run = check_recipe(document, machine, host_ram, trial)
        explanation = explain(
            run, overrides, report.diagnostics, options.simulation_of(run) if simulate else None, energy
        )
    if form == "json":
        explanation = explanation.rounded()
    short = partial(explain_summary.format_summary, machine_words=options.machine_words(machine, host_ram))
    as_text = explain_text.format_explanation if full else short
    emit(explanation, form, lambda shown: _format_errors(report) + as_text(shown))
    sys.exit(1 if report.count(Severity.ERROR) else 0)


def _format_errors(report: FileReport) -> str:
    """Return the errors that would stop the run and the warnings that matter as much, as `check` prints them.
    Memory is left out, because the verdict states it."""
    found = [
        each
        for each in report.diagnostics
        if (each.severity is Severity.ERROR and each.code not in MEMORY_CODES)
        or (each.severity is Severity.WARNING and each.code.startswith(_SHOWN_WARNINGS))
    ]
    shown = FileReport(report.path, found, sources=report.sources, overrides=report.overrides)
    return escaping.escape_lines(findings.finding_lines(shown, width=terminal_width()))
