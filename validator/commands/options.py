"""Options that several commands share."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from validator.commands.say import say
from validator.diagnostic import RecipeError
from validator.tables import machines

if TYPE_CHECKING:
    from validator.study.own import Own

AUTO = "auto"
TARGET = "Target, such as 8xascend-910b-64g, 2x8xa100-80g or, by its memory, 1x48g; auto: this machine."
_YEAR = 8760  # hours
_MOST_GIB = 1 << 20  # of a node: more than any has, and less than what no longer is a size
_RAM = "main memory of this machine"


class Unseen(click.ClickException):
    """This machine shows no accelerator: exit code 2, as for other machines that are not known."""

    exit_code = 2


def known(context: click.Context, _parameter: click.Parameter, machine: str | None) -> str | None:
    """A machine on the command line that is not known is wrong usage, not a finding in a file: exit code 2. `auto`
    becomes the name of this machine."""
    if machine == AUTO and not context.resilient_parsing:
        return _this(context)
    return named(context, _parameter, machine)


def judged(context: click.Context, parameter: click.Parameter, machine: str | None) -> str | None:
    """As `known`, for what is said of a recipe: `auto` is all devices here, of which `train` may take fewer."""
    name = known(context, parameter, machine)
    if machine == AUTO and name and (count := machines.machine(name).devices) > 1:
        text = f"judged for {count} devices; `train` takes no more than the recipe names, or NPROC_PER_NODE"
        say(text, err=True)
    return name


def named(_context: click.Context, _parameter: click.Parameter, machine: str | None) -> str | None:
    """A machine as it is written, with `auto` left to the command."""
    if machine not in (None, AUTO):
        try:
            machines.machine(machine)
        except RecipeError as err:
            raise click.UsageError(str(err)) from None
    return machine


def _this(context: click.Context) -> str:
    """The name of this machine; says on standard error what that is."""
    from validator.here import machine  # runs the programs of the drivers: only where it is asked for

    try:
        here = machine.require()
    except RecipeError as err:
        raise Unseen(f"--machine auto: {err}") from None
    for line in (f"this machine: {here}", *here.notes()):
        say(line, err=True)
    context.meta[_RAM] = here.host_ram_gib
    return here.machine


class Number(click.FloatRange):
    """A number within bounds; nan, which is neither too small nor too large for click, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


def memory(context: click.Context, _parameter: click.Parameter, gib: float | None) -> float | None:
    """The main memory that is given, else that of this machine where `--machine auto` asks for it: click handles what
    stands on the command line before what does not."""
    return gib if gib is not None else context.meta.get(_RAM)


def network(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """A network that is not known is wrong usage."""
    if name is not None:
        from validator.tables import networks  # only where one is named

        try:
            networks.network(name)
        except RecipeError as err:
            raise click.UsageError(str(err)) from None
    return name


def price(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """What is no price is wrong usage."""
    if text is not None:
        from validator.job.price import price  # only where one is given

        if price(text) is None:
            raise click.UsageError(f"price `{text}` is not an amount and a currency, such as 1.99 USD")
    return text


def hours(_context: click.Context, _parameter: click.Parameter, number: float | None) -> float | None:
    """What no job can take is wrong usage."""
    if number is not None and not 0 < number <= _YEAR:
        raise click.UsageError(f"hours are a number above 0 and at most {_YEAR:,}, not {number:g}")
    return number


def data(context: click.Context, _parameter: click.Parameter, path: str | None) -> Own | None:
    """What a file of the user's own holds."""
    if path is None or context.resilient_parsing:
        return None
    from validator.study.own import own  # reads the rows: only where it is asked for

    return own(Path(path))


MACHINE = click.option("--machine", metavar="M", callback=judged, help=TARGET)
RAM = click.option(
    "--host-ram", type=Number(1, _MOST_GIB), metavar="GIB", callback=memory, help="Main memory of a node."
)
NETWORK = click.option(
    "--network", metavar="N", callback=network, help="Between nodes: ethernet-25g, 8xinfiniband-400g …"
)
PRICE = click.option("--price", metavar="P", callback=price, help="Of a device and hour, such as '1.99 USD'.")
FORMAT = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Text is default.")
DATA = click.option(
    "--data", metavar="FILE", callback=data, help="Your own data, a file or folder; its entry is written, too."
)
