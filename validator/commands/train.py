"""The command `train`: check a recipe for this machine, start llamafactory-cli, and report how it ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import NoReturn

import click

from validator import dataset
from validator.commands import options, preflight
from validator.entry import OutputError
from validator.errors import RecipeError
from validator.knowledge import releases
from validator.launch import after_training, local_launch, resume, trainer_log
from validator.launch import device_allocation as targets
from validator.launch import short_run as smoking
from validator.launch.device_allocation import DeviceAllocation
from validator.launch.local_launch import LocalLaunch, lock_output_dir
from validator.launch.start_summary import start_summary
from validator.machine.installed_packages import find_installed
from validator.on_node.output_lock import OutputLock
from validator.output.terminal import print_lines
from validator.processes import END_SIGNALS
from validator.recipe.recipe_file import Document, with_missing_header_fields
from validator.run.settings import RunSettings, resolve


@click.command("train")
@click.argument("recipe", type=click.Path(), shell_complete=options.complete_recipes_and_files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--machine",
    metavar="M",
    default=options.AUTO_MACHINE,
    callback=options.require_known_machine,
    help="Judge for this machine; default: the one here.",
)
@options.HOST_RAM_OPTION
@click.option("--dry-run", is_flag=True, help="Check, say what a start would do, and print its command.")
@click.option("--smoke", is_flag=True, help="Two steps, an evaluation and a save, in a folder beside the output.")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=options.NumberInRange(0),
    help="How long a save may take to its end once the run is told to end; default: what one takes, and a minute.",
)
def command(
    recipe: str,
    overrides: Sequence[str],
    machine: str,
    host_ram: float | None,
    dry_run: bool,
    smoke: bool,
    grace: float | None,
) -> None:
    """Check a recipe for this machine, then start llamafactory-cli.

    Ctrl-C, SIGTERM and SIGHUP end the run after a save that is under way, a second Ctrl-C at once. No process is left.

    Exit code 1 where the recipe has an error, or this machine lacks what it needs, also of a dry run unless --machine
    names another one; 130, 143 or 129 after these signals, 141 where nobody reads its output any more;
    else that of llamafactory-cli.
    """
    if recipe == "-":
        raise click.UsageError("llamafactory-cli reads a recipe from a file; save it first")
    recipe, overrides = options.locate_recipe(recipe, overrides)
    document = options.load_configured(recipe, overrides, starts_here=True)
    target = _launch_machine(document, machine, dry_run)
    # A dry run where no device is may be for a machine with other packages.
    installed = find_installed().versions(releases.ENGINE_FIELDS) if target.accelerators or not dry_run else {}
    document = with_missing_header_fields(document, installed)
    run, refusals = preflight.check_before_start(document, target, host_ram, dry_run)
    if smoke:  # judged as the whole run
        overrides = (*overrides, *smoking.smoke_overrides(run))
        document = options.load_configured(recipe, overrides, starts_here=True)
        run = resolve(with_missing_header_fields(document, installed), target.machine)
    prepared = local_launch.build_launch(run, overrides, target.device_env)
    if not dry_run and (smoke or not resume.finished_message(run)):
        local_launch.check_can_start(prepared)  # before there is an output folder
    # Several nodes share an output folder, which the first one locks.
    locks = not dry_run and (prepared.launch.nodes == 1 or os.environ.get("NODE_RANK") == "0")
    with lock_output_dir(prepared.output, lambda text: print_lines(text, err=True)) if locks else nullcontext() as lock:
        if not smoke:
            _report_earlier_run(run, dry_run)
        if not dry_run:
            _train_and_exit(run, prepared, overrides, smoke, grace, lock)
    elsewhere = machine != options.AUTO_MACHINE and not run.on_cpu
    refusals += _launch_refusals(prepared)
    run = _with_counted_samples(run)
    print_lines(*start_summary(run, prepared, target, refusals, elsewhere), err=True)
    print_lines(*prepared.commands())
    sys.exit(1 if refusals and not elsewhere else 0)


def _with_counted_samples(run: RunSettings) -> RunSettings:
    """Return the run with the samples of its local data counted, as far as they are read quickly."""
    if run.data.registry is None or (counted := dataset.count_samples(run)) is None:
        return run
    return replace(run, workspace=replace(run.workspace, registry=run.data.registry._replace(counted=counted)))


def _launch_refusals(prepared: LocalLaunch) -> list[str]:
    """Return why llamafactory-cli could not be started here, for a dry run. What several nodes need of their
    environment is left out, because the dry run prints the command of each node."""
    try:
        local_launch.check_can_start(prepared, nodes=1)
    except RecipeError as err:
        return [str(err)]
    return []


def _launch_machine(document: Document, machine: str, dry: bool) -> DeviceAllocation:
    if machine == options.AUTO_MACHINE:
        return targets.allocate_devices(resolve(document), dry=dry)
    # A dry run may be for another machine.
    return DeviceAllocation(machine) if dry else targets.allocate_for_machine(machine, resolve(document, machine))


def _report_earlier_run(run: RunSettings, dry: bool) -> None:
    """Print from which checkpoint the run resumes. If nothing is left to train and `dry` is false, the program ends
    here with exit code 0, so that a job that is started again and again comes to an end."""
    for line in resume.resume_messages(run, dry=dry):
        print_lines(line, err=True)
    if not dry and resume.finished_message(run):
        sys.exit(0)


def _train_and_exit(
    run: RunSettings,
    prepared: LocalLaunch,
    overrides: Sequence[str],
    smoke: bool,
    grace: float | None,
    lock: OutputLock | None,
) -> NoReturn:
    """Train, print where the results are and what to do with them, and end the program with the trainer's exit code.
    `overrides` are the words of the command line that changed the recipe. `smoke` is true for a smoke
    run, whose summary is printed. `grace` is the number of seconds from a signal until the trainer is killed (None: by
    the size of a checkpoint). `lock` is that of the output folder, if it is locked."""
    began = time.monotonic()
    code = local_launch.run_training(prepared, grace, lock)
    if code == 0:
        saved = [f"saved: {path}" for path in local_launch.result_files(prepared.output)]
        lines = [*trainer_log.loss_lines(prepared.output), *saved]
        lines += [] if smoke else after_training.next_steps(run, prepared.output, overrides)
        print_lines(*([""] if lines else []), *lines)  # apart from what the trainer prints
    if smoke and code == 0:
        print_lines(smoking.smoke_summary(prepared.output, time.monotonic() - began))
    if code:
        sentences = (
            _describe_exit(prepared.launch.words[0], code),
            None if smoke else resume.after_exit_message(run, code),
        )
        with suppress(OutputError):  # the terminal may be gone
            print_lines(f"lmf-recipes: {'; '.join(filter(None, sentences))}", err=True)
    sys.exit(code)


def _describe_exit(name: str, code: int) -> str:
    if code == local_launch.NO_READER:
        return f"{name} ended, as nobody reads its output any more"
    signal_names = {128 + number: number.name for number in END_SIGNALS}
    return f"ended by {signal_names[code]}" if code in signal_names else f"{name} ended with exit code {code}"
