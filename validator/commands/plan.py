"""The command `plan`: what fits a machine, best first, and the first plan written as a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from validator import dataset
from validator.check import worker_pool
from validator.commands import options, preflight
from validator.errors import RecipeError
from validator.escaping import shell_join
from validator.knowledge import guidance
from validator.knowledge.devices import Machine, parse_machine
from validator.knowledge.models import find_model_by_any_name
from validator.output import plan_text, written_files
from validator.output.terminal import emit, print_lines
from validator.plan import answer as planner
from validator.plan import other_machines, rented_machines
from validator.plan.answer import Answer, matching_recipe
from validator.plan.new_recipe import PLANNED_STAGES
from validator.plan.own_prices import OwnPrices, read_own_prices
from validator.plan.plan_json import answer_rows
from validator.plan.rented_machines import MachineOffer, RentalQuestion
from validator.recipe.atomic_write import require_new_file
from validator.recipe.recipe_file import RECIPE_SUFFIXES
from validator.recipe.safe_read import expand_home
from validator.simulation.predict import simulations_of_plan
from validator.wording import plural

if TYPE_CHECKING:
    from validator.run.user_data import UserData


def next_commands(answer: Answer, option_words: Sequence[str], compared: str | None = None) -> list[str]:
    """Return commands that may follow: write the best plan as a recipe, or copy the catalogue's recipe for the same
    model, method and machine. After a table of models: plan for the first of them. If neither the plan nor one change
    of it fits: compare all machines. `option_words` are the options of this call, as words of a command line;
    `compared` are the machines that this call compared."""
    if answer.best is None:
        has_no_way = bool(answer.model) and not answer.reasons and not answer.upgrades
        can_compare = has_no_way and (compared or "").lower() != rented_machines.ALL_MACHINES
        return [shell_join(_all_machines_command(option_words))] if can_compare else []
    draft, plan_words = answer.best.draft, ["lmf-recipes", "plan", *option_words]
    if answer.model is None:
        return [shell_join([*plan_words, "--model", draft.model.name])]
    commands = [[*plan_words, "--write", f"{draft.name}.yaml"]]
    if alike := matching_recipe(draft):
        given = [option_words.index(each) for each in ("--data", "--columns") if each in option_words]
        words = [word for at in given for word in option_words[at : at + 2]]
        commands.append(["lmf-recipes", "copy", alike, ".", *words])
    return [shell_join(command) for command in commands]


def _all_machines_command(option_words: Sequence[str]) -> list[str]:
    """Return the command that compares all machines, without the options that are for one machine."""
    command, words = ["lmf-recipes", "plan"], iter(option_words)
    for word in words:
        if word in ("--machine", "--machines", "--host-ram", "--network"):
            next(words)
        elif word not in ("--fsdp", "--scale", "--simulate"):
            command.append(word)
    return [*command, "--machines", "all"]


_WHY_NO_MACHINE = "why this machine is not planned for"


def _machine_here_or_none(context: click.Context, parameter: click.Parameter, machine: str | None) -> str | None:
    """Return the machine's name like `options.resolve_machine`. Without --machine and --machines, return the name of
    this machine; None if it has no accelerator."""
    if machine is not None or context.params.get("machines") or context.resilient_parsing:
        return options.resolve_machine(context, parameter, machine)
    try:
        return options.resolve_machine(context, parameter, options.AUTO_MACHINE)
    except options.NoAcceleratorError as err:
        context.meta[_WHY_NO_MACHINE] = err.message.removeprefix(f"--machine {options.AUTO_MACHINE}: ")
        return None


def _require_known_machines(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """Return the value of --machines unchanged. Raises click.UsageError if it names a machine that is not known."""
    if text is not None:
        try:
            rented_machines.machines_to_compare(text)
        except RecipeError as err:
            raise click.UsageError(str(err)) from None
    return text


def _read_own_prices(_context: click.Context, _parameter: click.Parameter, text: str | None) -> OwnPrices | None:
    """Return the prices that --price gives. Raises click.UsageError if it is neither a price nor a file of prices."""
    try:
        return read_own_prices(text) if text is not None else None
    except RecipeError as err:
        raise click.UsageError(str(err)) from None


def _compare_machines(question: RentalQuestion, machines: str) -> list[MachineOffer]:
    """Return what each of the machines that --machines names offers, cheapest first. If nothing fits one server, two
    and four with the devices that are named without a number are compared, too."""
    offers = worker_pool.map_in_processes(question.offers, rented_machines.machines_to_compare(machines))
    if not any(offer.fits for found in offers for offer in found):
        offers += worker_pool.map_in_processes(question.offers, rented_machines.several_servers(machines))
    return rented_machines.order_offers([*chain.from_iterable(offers)], question.prices)


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
@click.option("--machine", metavar="M", callback=_machine_here_or_none, help=options.MACHINE_HELP)
@click.option(
    "--machines",
    metavar="LIST",
    callback=_require_known_machines,
    help="Compare what training costs on these: all, a vendor, or such as h100,2xa100,4090.",
)
@click.option(
    "--model",
    metavar="M",
    help="Such as qwen3-14b, Qwen/Qwen3-14B or a folder with config.json; without it, models are proposed.",
    shell_complete=options.complete_models,
)
@click.option(
    "--samples", type=options.Count(1, 10**12), metavar="N", help="Good samples that you have, without --data."
)
@click.option(
    "--method",
    type=click.Choice(guidance.TUNING_METHODS, case_sensitive=False),
    help="Only this method; qlora: 4-bit base, freeze: last layers.",
)
@click.option(
    "--stage",
    type=click.Choice(PLANNED_STAGES, case_sensitive=False),
    help="sft: answers; dpo, rm, kto: preferences; pt: plain text. Default: what the data are for, else sft.",
)
@options.DATA_OPTION
@options.COLUMNS_OPTION
@click.option(
    "--cutoff-len",
    type=options.Count(8, 1 << 26, kilo=1024),
    metavar="N",
    help="Longest sample in tokens; default 2048.",
)
@options.HOST_RAM_OPTION
@options.NETWORK_OPTION
@click.option(
    "--price",
    metavar="P",
    callback=_read_own_prices,
    help="Of a device and hour: '1.99 USD', 'h100: 1.99 USD', or a file with such lines.",
)
@click.option("--scale", "scaled", is_flag=True, help="Also on 1, 2, 4, 8 … devices: hours and device hours of each.")
@click.option("--fsdp", is_flag=True, help="Shard with FSDP instead of ZeRO.")
@options.SIMULATE_OPTION
@click.option("--write", metavar="FILE", callback=_require_new_recipe, help="Write the first plan as a recipe.")
@options.FORMAT_OPTION
@click.pass_context
def command(
    context: click.Context,
    machine: str | None,
    machines: str | None,
    model: str | None,
    samples: int | None,
    method: str | None,
    stage: str | None,
    data: UserData | None,
    columns: str | None,  # noqa: ARG001 (read with --data)
    cutoff_len: int | None,
    host_ram: float | None,
    network: str | None,
    price: OwnPrices | None,
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
    lmf-recipes plan --machines all --model qwen3-8b           which machine to rent?
    lmf-recipes plan … --write mine.yaml                       the first as a recipe

    Hours are those of the samples that there are, else of the recommended number, from low to high: of 22 public runs
    15 took as long. The soonest comes first, but a method that is sooner by less than a quarter stays behind lora (in
    stage pt behind full), and GaLore, APOLLO and BAdam come last. Without rates of the device, ways that add less work
    to a step come first. Prices of --machines are dated public list prices.
    """
    machines = _machines_to_compare(context)
    _require_one_count(samples, data)
    stage, samples = planner.stage_and_samples(stage, samples, data)
    made_for = None if model and data else samples  # beside data of one's own the header says how many are recommended
    registry, offers = data.registry if data else None, list[MachineOffer]()
    known = find_model_by_any_name(model) if model and machines else None
    if machines == rented_machines.ALL_MACHINES and not context.params["machines"]:
        print_lines(f"{context.meta[_WHY_NO_MACHINE]}; without one, all known machines are compared", err=True)
    if registry and model:
        registry = planner.with_counted_samples(registry, model, stage, dataset.count_samples)
    if known and machines:
        asked = RentalQuestion(known, made_for, host_ram, cutoff_len, method, stage, registry, network, price)
        offers = _compare_machines(asked, machines)
        machine = _go_on_with(context, offers)
    text = str(machine)
    unit_price = rented_machines.rental_price(parse_machine(text).device.id, price) if offers or price else None
    with options.open_session(simulate, _MAX_FURTHER_SIMULATIONS) as session:
        answer = planner.find_answer(
            model, text, made_for, host_ram, cutoff_len, method, stage, fsdp, registry, network,
            str(unit_price) if unit_price else None,
            partial(simulations_of_plan, session=session) if session else None,
            options.installed_releases(),
        )  # fmt: skip
        answer = replace(answer, samples=samples)
        if scaled and answer.best:
            scale = other_machines.plans_by_device_count(answer.best.draft, answer.machine, host_ram is not None)
            answer = replace(answer, scale=scale)
        if data and answer.best:
            data.require_media(answer.best.draft.run)
        options_given = _given_options(context, simulated=answer.planned is not None)
        following = () if write or form == "json" else next_commands(answer, options_given, machines)
        emit(answer_rows(answer, offers), form, lambda rows: plan_text.format_plan(rows, following))
        is_usable = _write_recipe(answer, write, data, aside=form == "json") if write else True
    sys.exit(0 if answer.best and is_usable else 1)


def _require_one_count(samples: int | None, data: UserData | None) -> None:
    """Raise click.UsageError if both the data and --samples say how many samples there are."""
    if samples and data:
        found = f"{data.counted} {plural(data.rows, 'row')}"
        raise click.UsageError(f"`{data}` holds {found}, and with --data the plan is for these; leave out --samples")


def _write_recipe(answer: Answer, file: Path, data: UserData | None, aside: bool) -> bool:
    """Write the first plan as a recipe and print what was written, on standard error if `aside` is true. Return False
    if rows of the data would end the run."""
    placed = planner.write_best_plan(answer.best, file, data)
    findings, stops = preflight.data_findings(placed.recipe) if data else ([], False)
    written = written_files.format_installed_recipe(placed, data is not None, findings, stops)
    click.echo(written, nl=False, err=aside)
    return not stops


def _machines_to_compare(context: click.Context) -> str | None:
    """Return the machines to compare; None to plan for one machine. Without any machine, named or here, all machines
    are compared. Raises click.UsageError for options that do not go together."""
    given = context.params
    if given["model"] is None:
        of_one = (f"--{name}" for name in ("machines", "fsdp", "scaled", "simulate") if given[name])
        if asked := next(of_one, None):
            raise click.UsageError(f"{asked.replace('scaled', 'scale')} is for one model; give --model")
        if given["machine"] is None:
            hint = "to compare machines, name a model, such as `--model qwen3-8b`"
            raise click.UsageError(f"{context.meta[_WHY_NO_MACHINE]}; {hint}")
    if given["machines"] and given["machine"]:
        raise click.UsageError("--machine plans for one machine, --machines compares several; give one of them")
    if given["machine"]:
        return None
    of_one = (f"--{name}" for name in ("fsdp", "scaled", "simulate", "write") if given[name])
    if asked := next(of_one, None):
        raise click.UsageError(f"{asked.replace('scaled', 'scale')} is for one machine; give --machine")
    return given["machines"] or rented_machines.ALL_MACHINES


def _go_on_with(context: click.Context, offers: Sequence[MachineOffer]) -> str:
    """Return the first of the compared machines, on which the answer goes on, and make it an option of this call. If
    nothing fits, return the machine with the most memory, of NVIDIA's if there are any, as kernels of many models run
    on these alone."""
    first, own = offers[0], context.params["price"]
    if not first.fits:
        machines = [parse_machine(each.machine) for each in offers]
        return str(max(machines, key=lambda each: (each.device.vendor == "nvidia", _total_memory(each))))
    price = str(first.price) if first.price and not (own and own.of_device) else own
    context.params.update(machine=first.machine, machines=None, price=price)
    return first.machine


def _total_memory(machine: Machine) -> float:
    return machine.world * (machine.device.usable_gib or 0.0)


def _given_options(context: click.Context, simulated: bool) -> list[str]:
    """Return the options that the user has given, as words of a command line. --simulate is left out if `simulated` is
    false, because nothing had to be simulated."""
    words: list[str] = []
    for option in context.command.params:
        value, spare = context.params[str(option.name)], option.name == "simulate" and not simulated
        if value not in (None, False, option.default) and not spare:
            words += [option.opts[0], *(() if value is True else (str(value).removesuffix(".0"),))]
    return words
