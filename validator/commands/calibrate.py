"""The command `calibrate`: time real steps on this machine, and list or forget what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

import click

from validator import escaping
from validator.commands import options, preflight
from validator.doctor import start_checks
from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.finding import Severity
from validator.knowledge.devices import parse_machine
from validator.launch import device_allocation as targets
from validator.launch import local_launch, short_run, trainer_log
from validator.launch.device_allocation import DeviceAllocation
from validator.launch.trainer_log import MeasuredSteps
from validator.output.terminal import format_table, print_lines
from validator.recipe import safe_read
from validator.recipe.atomic_write import scratch_folder
from validator.recipe.recipe_file import Document
from validator.run import calibration
from validator.run.calibration import Calibration
from validator.run.launch_command import Launch
from validator.run.settings import RunSettings, resolve
from validator.run.training_time import comparable_step_seconds
from validator.wording import format_duration, format_duration_band, plural, two_digits


@click.command("calibrate")
@click.argument("recipe", type=click.Path(), required=False, shell_complete=options.complete_recipes_and_files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--steps", "number", type=click.IntRange(3, 1000), default=10, help="How many are timed; default: 10.")
@click.option("--log", "file", type=click.Path(path_type=Path), help="trainer_log.jsonl of an earlier run of RECIPE.")
@click.option(
    "--machine",
    metavar="M",
    callback=options.require_known_machine,
    help="With --log: where it ran; default: the recipe's.",
)
@click.option("--list", "listing", is_flag=True, help="What was measured.")
@click.option("--forget", metavar="M", help="Take back what was measured on machine M.")
def command(
    recipe: str | None,
    overrides: Sequence[str],
    number: int,
    file: Path | None,
    machine: str | None,
    listing: bool,
    forget: str | None,
) -> None:
    """Time real steps on this machine, to correct its predictions.

    The steps run through llamafactory-cli, into a temporary folder, and end before anything is saved.
    """
    if forget is not None:
        _forget_machine(forget)
    elif listing:
        click.echo(format_all_measurements(calibration.load_calibrations()), nl=False)
    elif recipe is None:
        raise click.MissingParameter(param_hint="'RECIPE'", param=click.get_current_context().command.params[0])
    else:
        recipe, overrides = options.locate_recipe(recipe, overrides)
        run, timed = (
            _timed_from_log(recipe, overrides, machine, file)
            if file
            else _time_steps(recipe, overrides, machine, number)
        )
        _keep_measurement(recipe, run, timed)


def _timed_from_log(
    recipe: str, overrides: Sequence[str], machine: str | None, file: Path
) -> tuple[RunSettings, MeasuredSteps]:
    return resolve(options.load_configured(recipe, overrides), machine), trainer_log.read_measured_steps(file)


def _time_steps(
    recipe: str, overrides: Sequence[str], machine: str | None, number: int
) -> tuple[RunSettings, MeasuredSteps]:
    if recipe == "-" or machine not in (None, options.AUTO_MACHINE):
        raise click.UsageError("steps are timed here, of a recipe in a file; --machine names where a --log is from")
    with scratch_folder() as output:
        own = options.load_configured(recipe, overrides, starts_here=True)
        first = resolve(own)
        words = (*overrides, *short_run.timed_overrides(first, number, output))
        document = options.load_configured(recipe, words, starts_here=True)
        target = targets.allocate_devices(resolve(document), dry=False)
        if not target.accelerators and not first.on_cpu:
            raise RecipeError("this machine shows no device that steps could be timed on; --log takes a run elsewhere")
        run, _ = preflight.check_before_start(_without_own_findings(document, own, target), target, None)
        if run.machine is None or Launch(run).nodes > 1:
            raise RecipeError("steps are timed on one node; of a run on several give the first one's log: --log FILE")
        prepared = local_launch.build_launch(run, words, target.device_env)
        local_launch.check_can_start(prepared)
        timed = short_run.run_timed_steps(prepared, number)
        print_lines("", err=True)  # apart from what the trainer prints
        return run, timed


def _without_own_findings(timed: Document, own: Document, target: DeviceAllocation) -> Document:
    """Return the document of the timed run without the notes and warnings that the recipe `own` has not: those are on
    keys that have no effect in a few steps."""
    found, expected = (start_checks.judge_recipe(each, target.machine, target.host_ram_gib) for each in (timed, own))
    codes = {each.code for each in found.files[0].diagnostics if each.severity is not Severity.ERROR}
    codes -= {each.code for each in expected.files[0].diagnostics}
    return replace(timed, options=timed.options._replace(ignore=(*timed.options.ignore, *codes)))


def _keep_measurement(recipe: str, run: RunSettings, timed: MeasuredSteps) -> None:
    """Save the measured step time of the recipe on its machine, and print how it compares with the prediction. Raises
    RecipeError if the model or the machine is not known, because there is then no prediction."""
    expected = comparable_step_seconds(run, timed.tokens)
    if run.machine is None or expected is None:
        raise RecipeError(f"`{recipe}`: there is nothing to correct where machine or model is not known")
    name = str(safe_read.real_path(recipe))
    measured = Calibration(str(run.machine), name, timed.seconds, expected, timed.steps, date.today().isoformat())
    calibration.save_calibration(measured)
    click.echo(
        format_measurement(measured, timed, calibration.time_correction(measured.machine) or measured.ratio), nl=False
    )


def _forget_machine(machine: str) -> None:
    with suppress(RecipeError):  # another release may have known the machine
        machine = str(parse_machine(machine))
    number = calibration.remove_calibrations(machine)
    if not number:
        raise RecipeError(f"nothing was measured on `{machine}`; `lmf-recipes calibrate --list` shows what was")
    print_lines(f"forgotten: {number} {plural(number, 'recipe')} on {machine}")


_MEASUREMENT_COLUMNS = ("machine", "recipe", "a step took", "predicted", "ratio", "steps", "date")


def format_measurement(measured: Calibration, timed: MeasuredSteps, correction: float) -> str:
    """Return lines of text: the measured step, the predicted step, and `correction`, by which predictions for this
    machine are multiplied from now on. `correction` is the ratio of measured to predicted time over all recipes that
    were measured on this machine."""
    tokens = f" of {timed.tokens:,.0f} tokens" if timed.tokens else ""
    took = format_duration_band(timed.low, timed.seconds, timed.high)
    lines = [
        f"{measured.machine}: a step took {took}, the median of {timed.steps}{tokens}; "
        f"predicted: {format_duration(measured.expected)}",
        f"kept: what is predicted for {measured.machine} is multiplied by {two_digits(correction)} from now on; "
        f"`lmf-recipes calibrate --forget {shell_quote(measured.machine)}` takes it back",
    ]
    if timed.allocated_gib:
        lines.append(f"memory: {timed.allocated_gib:.1f} GiB of live tensors at most, on the first device")
    return escaping.escape_lines(lines)


def format_all_measurements(every: Sequence[Calibration]) -> str:
    """Return one line of text for each recipe and machine that was measured."""
    if not every:
        return "nothing was measured yet: lmf-recipes calibrate RECIPE\n"
    rows = (
        (
            each.machine,
            each.recipe,
            format_duration(each.seconds),
            format_duration(each.expected),
            two_digits(each.ratio),
            each.steps,
            each.date,
        )
        for each in every
    )
    return escaping.escape_lines(format_table(_MEASUREMENT_COLUMNS, rows))
