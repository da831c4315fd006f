"""`lmf-recipes check`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from validator.commands import options, plain, simulating
from validator.diagnostic import RecipeError
from validator.judge.selection import Selection, codes
from validator.show import report as reports


def _codes(_context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Codes of rules, or their beginnings; one that matches nothing is wrong usage."""
    try:
        return codes(words)
    except RecipeError as err:
        raise click.UsageError(str(err)) from None


@click.command("check")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@options.MACHINE
@options.RAM
@click.option("--format", "form", type=click.Choice(list(reports.FORMATS)), default="text", help="Text is default.")
@click.option("--strict", is_flag=True, help="Exit 1 on warnings, too.")
@click.option(
    "--select", multiple=True, metavar="CODES", callback=_codes, help="Only these codes, such as PAR1,TRA009."
)
@click.option("--ignore", multiple=True, metavar="CODES", callback=_codes, help="All codes but these.")
@simulating.OPTION
@click.option("--fix", is_flag=True, help="Make the fixes that cannot change what is trained.")
@click.option("--unsafe-fixes", "unsafe", is_flag=True, help="With --fix or --diff: those that may, too.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and write nothing.")
@click.option("--hook", is_flag=True, help="PATHs are a commit's: other files than recipes are passed by.")
def command(
    paths: Sequence[str],
    machine: str | None,
    host_ram: float | None,
    form: str,
    strict: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    simulate: bool,
    fix: bool,
    unsafe: bool,
    diff: bool,
    hook: bool,
) -> None:
    """Report every problem of recipes and DeepSpeed files.

    Without a PATH those in recipes/.
    """
    if unsafe and not (fix or diff):
        raise click.UsageError("--unsafe-fixes goes with --fix or --diff")
    if diff and form != "text":
        raise click.UsageError("--diff prints a plain diff; leave --format out")
    given = frozenset(paths) if hook else None
    if hook:
        from validator.judge import commit

        paths = commit.subjects(paths)
    elif not paths:
        paths = _default()
    with simulating.simulated(simulate) as trial:
        if fix or diff:
            from validator.commands import fixing  # which a check alone does not need

            target = fixing.Target(machine, host_ram, trial)
            fixing.fix(paths, fixing.Request(target, Selection(select, ignore), unsafe, diff, given), form, strict)
        plain.check(paths, machine, host_ram, form, strict, select, ignore, trial)


def _default() -> list[str]:
    if not Path("recipes").is_dir():
        raise click.UsageError("there is no folder `recipes` here; give a recipe, a folder, or a name of the catalogue")
    return ["recipes"]
