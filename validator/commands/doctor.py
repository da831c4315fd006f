"""The command `doctor`: whether this machine is fit for a run, one line per check."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from validator import escaping
from validator.commands import options
from validator.doctor.check_result import CheckResult
from validator.doctor.diagnosis import Diagnosis, examine
from validator.output.terminal import emit
from validator.wording import plural
from validator.wrapping import terminal_width, wrap_lines


@click.command("doctor")
@click.argument("recipe", type=click.Path(), required=False, shell_complete=options.complete_recipes_and_files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--machine",
    metavar="M",
    callback=options.require_known_machine,
    help="Where the run is meant for; default: what is here.",
)
@options.FORMAT_OPTION
def command(recipe: str | None, overrides: Sequence[str], machine: str | None, form: str) -> None:
    """Say whether this machine is fit for a run.

    \b
    lmf-recipes doctor                 what is wrong with this machine
    lmf-recipes doctor RECIPE          would this run fail here, and why

    One line each: found, wanted, what to do. Exit code 1 where a run would fail.
    """
    document = options.load_configured(*options.locate_recipe(recipe, overrides), starts_here=True) if recipe else None
    diagnosis = examine(document, None if machine == options.AUTO_MACHINE else machine)
    emit(diagnosis, form, format_diagnosis)
    sys.exit(1 if diagnosis.errors else 0)


_STATE_WIDTH = len("warning")


def format_diagnosis(diagnosis: Diagnosis) -> str:
    """Return one line of text for each check: state, name, what was found, what the run needs, what to do. On a narrow
    terminal it goes on below what was found. The last line sums up and names the node."""
    width = max((len(line.what) for line in diagnosis.lines), default=0)
    counts = ((diagnosis.errors, "error"), (diagnosis.warnings, "warning"))
    summary = f"{diagnosis.host}: {', '.join(f'{count} {plural(count, noun)}' for count, noun in counts)}"
    lines = [_diagnosis_line(line, width) for line in diagnosis.lines]
    if diagnosis.not_looked_at:
        unseen = ", ".join(diagnosis.not_looked_at)
        lines.append(f"not looked at, as this is another machine: {unseen}; doctor there looks at them")
    return escaping.escape_lines(wrap_lines([*lines, summary], terminal_width(), _STATE_WIDTH + width + 4))


def _diagnosis_line(line: CheckResult, width: int) -> str:
    wanted_text = f"wanted: {line.wanted}" if line.wanted else ""
    found = "; ".join(filter(None, (line.found, wanted_text, line.remedy)))
    return f"{line.state:<{_STATE_WIDTH}}  {line.what:<{width}}  {found}"
