"""The command `plan`: what fits a machine, best first, and the first plan written as a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from validator.commands import options
from validator.escaping import shell_join
from validator.knowledge import guidance
from validator.output import plan_text, written_files
from validator.output.terminal import emit
from validator.plan import answer as planner
from validator.plan import other_machines
from validator.plan.answer import Answer, matching_recipe
from validator.plan.new_recipe import PLANNED_STAGES
from validator.plan.plan_json import answer_rows
from validator.recipe.atomic_write import require_new_file
from validator.recipe.recipe_file import RECIPE_SUFFIXES
from validator.recipe.safe_read import expand_home
from validator.simulation.predict import simulations_of_plan
from validator.wording import plural

if TYPE_CHECKING:
    from validator.run.user_data import UserData


def next_commands(answer: Answer, option_words: Sequence[str]) -> list[str]:
    """Return commands that may follow: write the best plan as a recipe, or copy the catalogue's recipe for the same
    model, method and machine. After a table of models: plan for the first of them. `option_words` are the options of
    this call, as words of a command line."""
    if answer.best is None:
        return []
    draft, plan_words = answer.best.draft, ["lmf-recipes", "plan", *option_words]
    if answer.model is None:
        return [shell_join([*plan_words, "--model", draft.model.name])]
    commands = [[*plan_words, "--write", f"{draft.name}.yaml"]]
    if alike := matching_recipe(draft):
        data = option_words.index("--data") if "--data" in option_words else len(option_words)
        commands.append(["lmf-recipes", "copy", alike, ".", *option_words[data : data + 2]])
    return [shell_join(command) for command in commands]


# Simulations beside the first two: each takes about two seconds, and most plans need fewer.
_MAX_FURTHER_SIMULATIONS = 22


def _require_new_recipe(context: click.Context, _parameter: click.Parameter, file: str | None) -> Path | None:
    """Return the path that --write names, before the search for plans begins. Raises click.UsageError if its name does
    not end like a recipe's, and RecipeError if no new file can be written there."""
    if file is None or context.resilient_parsing:
        return None
    path = expand_home(file)
    if path.suffix not in RECIPE_SUFFIXES:
        raise click.UsageError(f"`{file}`: a recipe's name ends with .yaml")
    require_new_file(path)
    return path


@click.command("plan")
@click.option(
    "--machine", metavar="M", default=options.AUTO_MACHINE, callback=options.resolve_machine, help=options.MACHINE_HELP
)
@click.option(
    "--model",
    metavar="M",
    help="Such as qwen3-14b, Qwen/Qwen3-14B or a folder with config.json; without it, models are proposed.",
    shell_complete=options.complete_models,
)
@click.option(
    "--samples", type=click.IntRange(1, 10**12), metavar="N", help="Good samples that you have, without --data."
)
@click.option(
    "--method",
    type=click.Choice(guidance.TUNING_METHODS),
    help="Only this method; qlora: 4-bit base, freeze: last layers.",
)
@click.option(
    "--stage",
    type=click.Choice(PLANNED_STAGES),
    help="sft: answers; dpo, rm, kto: preferences; pt: plain text. Default: what the data are for, else sft.",
)
@options.DATA_OPTION
@click.option(
    "--cutoff-len", type=click.IntRange(8, 1 << 26), metavar="N", help="Longest sample in tokens; default 2048."
)
@options.HOST_RAM_OPTION
@options.NETWORK_OPTION
@options.PRICE_OPTION
@click.option("--scale", "scaled", is_flag=True, help="Also on 1, 2, 4, 8 … devices: hours and device hours of each.")
@click.option("--fsdp", is_flag=True, help="Shard with FSDP instead of ZeRO.")
@options.SIMULATE_OPTION
@click.option("--write", metavar="FILE", callback=_require_new_recipe, help="Write the first plan as a recipe.")
@options.FORMAT_OPTION
@click.pass_context
def command(
    context: click.Context,
    machine: str,
    model: str | None,
    samples: int | None,
    method: str | None,
    stage: str | None,
    data: UserData | None,
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

    Hours are those of the samples that there are, else of the recommended number, from low to high: of 22 public runs
    15 took as long. The soonest comes first. Without rates of the device, ways that add less work to a step come first.
    """
    of_one = {"--fsdp": fsdp, "--scale": scaled, "--simulate": simulate}
    if model is None and (asked := next((option for option, given in of_one.items() if given), None)):
        raise click.UsageError(f"{asked} is for one model; give --model")
    if samples and data:
        found = f"{data.counted} {plural(data.rows, 'row')}"
        raise click.UsageError(f"`{data}` holds {found}, and with --data the plan is for these; leave out --samples")
    stage, samples = planner.stage_and_samples(stage, samples, data)
    made_for = None if model and data else samples  # beside data of one's own the header says how many are recommended
    with options.open_session(simulate, _MAX_FURTHER_SIMULATIONS) as session:
        answer = planner.find_answer(
            model, machine, made_for, host_ram, cutoff_len, method, stage, fsdp, data.registry if data else None,
            network, price, partial(simulations_of_plan, session=session) if session else None,
        )  # fmt: skip
        answer = replace(answer, samples=samples)
        if scaled and answer.best:
            answer = replace(
                answer, scale=other_machines.plans_by_device_count(answer.best.draft, host_ram is not None)
            )
        if data and answer.best:
            data.require_media(answer.best.draft.run)
        shown = answer_rows(answer)
        options_given = _given_options(context, simulated=answer.planned is not None)
        following = () if write or form == "json" else next_commands(answer, options_given)
        emit(shown, form, lambda rows: plan_text.format_plan(rows, following))
        if write:
            written = written_files.format_installed_recipe(
                planner.write_best_plan(answer.best, write, data), own=data is not None
            )
            click.echo(written, nl=False, err=form == "json")
    sys.exit(0 if answer.best else 1)


def _given_options(context: click.Context, simulated: bool) -> list[str]:
    """Return the options that the user has given, as words of a command line. --simulate is left out if `simulated` is
    false, because nothing had to be simulated."""
    words: list[str] = []
    for option in context.command.params:
        value, spare = context.params[str(option.name)], option.name == "simulate" and not simulated
        if value not in (None, False, option.default) and not spare:
            words += [option.opts[0], *(() if value is True else (str(value).removesuffix(".0"),))]
    return words
