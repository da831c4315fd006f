"""`lmf-recipes explain`"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from validator import printable
from validator.advise.explain import explain
from validator.advise.explanation import MEMORY
from validator.commands import complete, options, simulating
from validator.diagnostic import FileReport, Severity
from validator.judge.check import judge
from validator.read.override import headed, overridden
from validator.recipes.named import named
from validator.show import chart, report, structure

# Changes that are simulated, where what the run needs is: each takes seconds.
_CHANGES = 6


@click.command("explain")
@click.argument("recipe", type=click.Path(), shell_complete=complete.files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@options.MACHINE
@options.RAM
@options.NETWORK
@options.PRICE
@click.option("--energy", is_flag=True, help="With the kWh that the boards draw.")
@simulating.OPTION
@options.FORMAT
def command(
    recipe: str,
    overrides: Sequence[str],
    machine: str | None,
    host_ram: float | None,
    network: str | None,
    price: str | None,
    energy: bool,
    simulate: bool,
    form: str,
) -> None:
    """Show where memory and time go, the verdict, and what would fit.

    Exit code 1 where `check` ends so.
    """
    recipe, overrides = named(recipe, overrides)
    with simulating.simulated(simulate, _CHANGES) as trial:
        document = headed(overridden(recipe, overrides), network=network, price=price)
        judged, job = judge(document, machine, host_ram, trial)
        explanation = explain(job, overrides, judged.diagnostics, simulating.figures(job) if simulate else None, energy)
    as_text = form == "text"
    shown = _errors(judged) + chart.text(explanation) if as_text else structure.text(explanation.rounded())
    click.echo(shown, nl=False)
    sys.exit(1 if judged.count(Severity.ERROR) else 0)


def _errors(judged: FileReport) -> str:
    """What stops the run, as `check` prints it, but for memory, which the verdict tells."""
    errors = [each for each in judged.diagnostics if each.severity is Severity.ERROR and each.code not in MEMORY]
    return printable.lines(report.lines_of(FileReport(judged.path, errors, sources=judged.sources)))
