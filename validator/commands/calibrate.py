"""`lmf-recipes calibrate`"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click

from validator.commands import complete, options, ready
from validator.commands.say import say
from validator.diagnostic import RecipeError, plural
from validator.job import job as jobs
from validator.job.job import Job
from validator.job.pace import measurable
from validator.measure import kept, log, steps
from validator.measure.kept import Measured
from validator.measure.log import Timed
from validator.read.override import overridden
from validator.recipes.named import named
from validator.show import measured as shown
from validator.train import handoff, start
from validator.train import target as targets
from validator.write.scratch import scratch


@click.command("calibrate")
@click.argument("recipe", type=click.Path(), required=False, shell_complete=complete.files)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--steps", "number", type=click.IntRange(3, 1000), default=10, help="How many are timed; default: 10.")
@click.option("--log", "file", type=click.Path(path_type=Path), help="trainer_log.jsonl of an earlier run of RECIPE.")
@click.option("--machine", metavar="M", callback=options.named, help="With --log: where it ran; default: the recipe's.")
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
        _forget(forget)
    elif listing:
        click.echo(shown.listed(kept.every()), nl=False)
    elif recipe is None:
        raise click.UsageError("Missing argument 'RECIPE'.")
    else:
        recipe, overrides = named(recipe, overrides)
        job, timed = _logged(recipe, overrides, machine, file) if file else _run(recipe, overrides, machine, number)
        _keep(recipe, job, timed)


def _logged(recipe: str, overrides: Sequence[str], machine: str | None, file: Path) -> tuple[Job, Timed]:
    return jobs.resolve(overridden(recipe, overrides), machine), log.timed(file)


def _run(recipe: str, overrides: Sequence[str], machine: str | None, number: int) -> tuple[Job, Timed]:
    if recipe == "-" or machine not in (None, options.AUTO):
        raise click.UsageError("steps are timed here, of a recipe in a file; --machine names where a --log is from")
    with scratch() as output:
        first = jobs.resolve(overridden(recipe, overrides))
        words = (*overrides, *steps.overrides(first, number, output))
        document = overridden(recipe, words)
        target = targets.target(jobs.resolve(document), dry=False)
        if not target.accelerators and not first.on_cpu:
            raise RecipeError("this machine shows no device that steps could be timed on; --log takes a run elsewhere")
        job = ready.ready(document, target, None)
        if job.machine is None or handoff.size(job)[0] > 1:
            raise RecipeError("steps are timed on one node; of a run on several give the first one's log: --log FILE")
        prepared = handoff.prepare(job, words, target.variables)
        start.admitted(job, prepared)
        return job, steps.measure(prepared, number)


def _keep(recipe: str, job: Job, timed: Timed) -> None:
    """Keeps what was measured, and says what comes of it."""
    expected = measurable(job, timed.tokens)
    if job.machine is None or expected is None:
        raise RecipeError(f"`{recipe}`: there is nothing to correct where machine or model is not known")
    name = str(Path(recipe).resolve())
    measured = Measured(str(job.machine), name, timed.seconds, expected, timed.steps, date.today().isoformat())
    kept.keep(measured)
    click.echo(shown.text(measured, timed, kept.correction(measured.machine) or measured.ratio), nl=False)


def _forget(machine: str) -> None:
    number = kept.forget(machine)
    if not number:
        raise RecipeError(f"nothing was measured on `{machine}`; `lmf-recipes calibrate --list` shows what was")
    say(f"forgotten: {number} {plural(number, 'recipe')} on {machine}")
