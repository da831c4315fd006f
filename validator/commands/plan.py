"""`lmf-recipes plan`"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from validator.commands import complete, options, simulating
from validator.plan import answer as planner
from validator.plan import scale
from validator.plan.draft import STAGES
from validator.plan.following import following
from validator.plan.rows import rows
from validator.read.disk import expanded
from validator.read.recipe import SUFFIXES
from validator.recipes.place import require_new
from validator.show import placed, plans, structure
from validator.tables import guidance

if TYPE_CHECKING:
    from validator.study.own import Own

# Simulations beside the first two: each takes about two seconds, and most plans need fewer.
_SIMULATIONS = 22


def _new(context: click.Context, _parameter: click.Parameter, file: str | None) -> Path | None:
    """The recipe to write: a name that cannot be written is refused before the search."""
    if file is None or context.resilient_parsing:
        return None
    path = expanded(file)
    if path.suffix not in SUFFIXES:
        raise click.UsageError(f"`{file}`: a recipe's name ends with .yaml")
    require_new(path)
    return path


@click.command("plan")
@click.option("--machine", metavar="M", default=options.AUTO, callback=options.known, help=options.TARGET)
@click.option(
    "--model",
    metavar="M",
    help="Such as qwen3-14b, Qwen/Qwen3-14B or a folder with config.json; without it, models are proposed.",
    shell_complete=complete.models,
)
@click.option("--samples", type=click.IntRange(1, 10**12), metavar="N", help="Good samples that you have.")
@click.option(
    "--method", type=click.Choice(guidance.METHODS), help="Only this method; qlora: 4-bit base, freeze: last layers."
)
@click.option(
    "--stage",
    type=click.Choice(STAGES),
    help="sft: answers; dpo, rm, kto: preferences; pt: plain text. Default: what the data are for, else sft.",
)
@options.DATA
@click.option(
    "--cutoff-len", type=click.IntRange(8, 1 << 26), metavar="N", help="Longest sample in tokens; default 2048."
)
@options.RAM
@options.NETWORK
@options.PRICE
@click.option("--scale", "scaled", is_flag=True, help="Also on 1, 2, 4, 8 … devices: hours and device hours of each.")
@click.option("--fsdp", is_flag=True, help="Shard with FSDP instead of ZeRO.")
@simulating.OPTION
@click.option("--write", metavar="FILE", callback=_new, help="Write the first plan as a recipe.")
@options.FORMAT
@click.pass_context
def command(
    context: click.Context,
    machine: str,
    model: str | None,
    samples: int | None,
    method: str | None,
    stage: str | None,
    data: Own | None,
    cutoff_len: int | None,
    host_ram: float | None,
    network: str | None,
    price: str | None,
    scaled: bool,
    fsdp: bool,
    simulate: bool,
    write: Path | None,
    form: str,
) -> None:
    """Show what fits a machine, best first. Exit code 1 where nothing does.

    \b
    lmf-recipes plan --machine 2xrtx-4090                      which models?
    lmf-recipes plan --machine 2xrtx-4090 --model qwen3-8b     how?
    lmf-recipes plan … --write mine.yaml                       the first as a recipe

    Hours are those of the samples that there are, else of the recommended number, with a 90 % band; the soonest comes
    first. Without rates of the device, ways that add less work to a step come first.
    """
    of_one = {"--fsdp": fsdp, "--scale": scaled, "--simulate": simulate}
    if model is None and (asked := next((option for option, given in of_one.items() if given), None)):
        raise click.UsageError(f"{asked} is for one model; give --model")
    stage, samples = planner.meant(stage, samples, data)
    made_for = None if model and data else samples  # beside data of one's own the header says how many are recommended
    with simulating.trials(simulate, _SIMULATIONS) as trials:
        answer = planner.answer(
            model, machine, made_for, host_ram, cutoff_len, method, stage, fsdp, data.registry if data else None,
            network, price, trials,
        )  # fmt: skip
        answer = replace(answer, samples=samples)
        if scaled and answer.best:
            answer = replace(answer, scale=scale.scale(answer.best.draft, host_ram is not None))
        if data and answer.best:
            data.require_media(answer.best.draft.job)
        shown = rows(answer)
        if form == "json":
            click.echo(structure.text(shown), nl=False)
        else:
            again = _given(context, simulated=answer.planned is not None)
            click.echo(plans.text(shown, () if write else following(answer, again)), nl=False)
        if write:
            written = placed.text(planner.write(answer.best, write, data), own=data is not None)
            click.echo(written, nl=False, err=form == "json")
    sys.exit(0 if answer.best else 1)


def _given(context: click.Context, simulated: bool) -> list[str]:
    """The options that were given, as words of a command line; without one that was of no use."""
    words: list[str] = []
    for option in context.command.params:
        value, spare = context.params[str(option.name)], option.name == "simulate" and not simulated
        if value not in (None, False, option.default) and not spare:
            words += [option.opts[0], *(() if value is True else (str(value).removesuffix(".0"),))]
    return words
