"""The command `check`: report every problem of recipes and of the files that they use, and fix what can be fixed
safely."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from validator import __version__
from validator.check.autofix import CheckOptions, FixRequest, fix_subject, format_diff, write_fixed_file
from validator.commands import check_files, options
from validator.configuration import (
    CommandLine,
    effective_settings,
    find_configuration,
    parse_codes,
)
from validator.errors import RecipeError
from validator.finding import PathSeverity, Report
from validator.knowledge import models, unknown_models
from validator.knowledge.file_kinds import CONFIGURATION_FILES
from validator.output import findings as reports
from validator.output.terminal import emit


def _require_known_codes(
    _context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the rule codes, or beginnings of rule codes, that the user has given for an option. Raises
    click.UsageError if one of them matches no rule."""
    try:
        return parse_codes(words)
    except RecipeError as err:
        raise click.UsageError(str(err)) from None


def _require_known_model(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """Return the model's name unchanged. Raises click.UsageError if the model is not known."""
    if name is not None and models.find_known_model(name) is None:
        raise click.UsageError(unknown_models.unknown_base_message(name))
    return name


@click.command("check")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@options.MACHINE_OPTION
@options.HOST_RAM_OPTION
@click.option(
    "--format", "form", type=click.Choice(list(reports.REPORT_FORMATS)), default="text", help="Text is default."
)
@click.option("--strict", is_flag=True, help="Exit 1 on warnings, too.")
@click.option(
    "--select",
    multiple=True,
    metavar="CODES",
    callback=_require_known_codes,
    help="Only these codes, such as PAR1,TRA009.",
)
@click.option("--ignore", multiple=True, metavar="CODES", callback=_require_known_codes, help="All codes but these.")
@click.option(
    "--base", metavar="M", callback=_require_known_model, help="What models come from that are not known, as # base: M."
)
@options.SIMULATE_OPTION
@click.option("--fix", is_flag=True, help="Make the fixes that cannot change what is trained.")
@click.option("--unsafe-fixes", "unsafe", is_flag=True, help="With --fix or --diff: those that may, too.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and write nothing.")
@click.option(
    "--paths",
    "path_severity",
    type=click.Choice(["error", "note"]),
    help="What a path is that only the training machine may have; default: error, with --hook note.",
)
@click.option("--pedantic", is_flag=True, help="With notes on what is fine as it is.")
@click.option("--hook", is_flag=True, help="PATHs are a commit's: files that are not judged are passed by.")
@click.option("--isolated", is_flag=True, help="Read no configuration file, such as that of a stranger's pull request.")
@click.option("--show-config", is_flag=True, help="Show the settings for each PATH and where they stand.")
def command(
    paths: Sequence[str],
    machine: str | None,
    host_ram: float | None,
    form: str,
    strict: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    base: str | None,
    simulate: bool,
    fix: bool,
    unsafe: bool,
    diff: bool,
    path_severity: PathSeverity | None,
    pedantic: bool,
    hook: bool,
    isolated: bool,
    show_config: bool,
) -> None:
    """Report every problem of recipes and the files they use.

    Without a PATH those in recipes/. A file is judged as what it holds: a recipe, a DeepSpeed or Accelerate file, or a
    data set registry; of any other kind a note says what it is. Settings of a team stand in pyproject.toml, below
    [tool.lmf-recipes], or in .lmf-recipes.yaml.
    """
    if unsafe and not (fix or diff):
        raise click.UsageError("--unsafe-fixes goes with --fix or --diff")
    if diff and form != "text":
        raise click.UsageError("--diff prints a plain diff; leave --format out")
    asked = CommandLine(select, ignore, pedantic, path_severity, hook, isolated, strict)
    if show_config:
        found = [effective_settings(path, asked, machine=machine, host_ram_gib=host_ram) for path in paths or ["."]]
        emit(found, "json" if form == "json" else "text", reports.format_settings)
        return
    staged = frozenset(map(Path, paths)) if hook else None
    if hook:
        from validator.check import find_files

        for path in paths:
            if Path(path).name in CONFIGURATION_FILES:
                find_configuration(path, asked)
        paths = find_files.files_to_check(paths)
    elif not paths:
        paths = _default_paths()
    fields = {**options.installed_releases(), **({"base": base} if base else {})}
    with options.open_simulator(simulate) as trial:
        if fix or diff:
            target = CheckOptions(machine, host_ram, trial, fields)
            fix_and_exit(paths, FixRequest(target, unsafe, diff, staged, asked), form)
        check_files.check_and_exit(paths, machine, host_ram, form, trial, fields, asked)


def _default_paths() -> list[str]:
    if not Path("recipes").is_dir():
        given = "there is no folder `recipes` here; give a recipe, a folder, or a name of the catalogue"
        raise click.UsageError(f"{given} (`lmf-recipes list` shows them, `lmf-recipes plan` makes a recipe)")
    return ["recipes"]


def fix_and_exit(paths: Sequence[str], request: FixRequest, form: str) -> NoReturn:
    """Fix the files, and print the remaining findings in the format `form`. Exit with code 1 if one of them is an error
    or counts as one, or a file could not be written. If `request.diff` is true, only print the changes,
    and exit with code 1 if there are any."""
    fixed_paths: set[str] = set()
    results = [
        each for path in paths for each in fix_subject(check_files.resolve_path_or_name(path), request, fixed_paths)
    ]
    if request.diff:
        sys.stdout.write("".join(format_diff(each.before, each.after) for each in results if each.before))
        sys.exit(1 if any(each.changed for each in results) else 0)
    failed = [not write_fixed_file(each) for each in results]
    report = Report(__version__, [each.report for each in results])
    streamed = any(each.before and each.before.path == "-" for each in results)
    check_files.report_and_exit(report, form, sys.stderr if streamed else sys.stdout, any(failed))
