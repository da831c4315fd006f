"""Options that several commands share, the checks of their values, `--simulate`, and shell completion of names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from validator import dataset
from validator.catalogue import bundled_recipes
from validator.commands import hints
from validator.configuration import configured
from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.knowledge import devices
from validator.knowledge.models import find_model, offered_models
from validator.output.terminal import print_lines
from validator.recipe.recipe_file import RECIPE_SUFFIXES, Document, load_with_overrides
from validator.recipe.safe_read import near_path
from validator.rows import named_columns
from validator.run import user_data

if TYPE_CHECKING:
    from validator.run.settings import RunSettings
    from validator.run.simulated import SimulationFigures
    from validator.run.user_data import UserData
    from validator.simulation.session import SimulationSession


AUTO_MACHINE = "auto"
MACHINE_HELP = "Target, such as 8xascend-910b-64g, 2x8xa100-80g or, by its memory, 1x48g; auto: this machine."
_HOURS_PER_YEAR = 8760  # hours
_MAX_HOST_RAM_GIB = 1 << 20  # of a node: more than any has, and less than what no longer is a size
_HOST_RAM_KEY = "main memory of this machine"
_INSTALLED_KEY = "releases of packages on this machine"
_BITSANDBYTES = "bitsandbytes"  # whose releases are among `packages` of the header block


class NoAcceleratorError(click.ClickException):
    """Error for `--machine auto` on a machine without an accelerator. The exit code is 2, as for every unknown
    machine."""

    exit_code = 2


def resolve_machine(context: click.Context, _parameter: click.Parameter, machine: str | None) -> str | None:
    """Return the machine's name; `auto` becomes the name of this machine. Raises click.UsageError for a machine that is
    not known, because that is wrong usage (exit code 2) and not a finding in a file."""
    if machine == AUTO_MACHINE and not context.resilient_parsing:
        return _this_machine(context)
    return require_known_machine(context, _parameter, machine)


def resolve_machine_to_judge(context: click.Context, parameter: click.Parameter, machine: str | None) -> str | None:
    """Return the machine's name like `resolve_machine`, for a command that judges a recipe. If several devices share
    the short form, print which one was taken. For `auto` on several devices, print that all of them are assumed,
    because `train` may use fewer."""
    name = resolve_machine(context, parameter, machine)
    if name is None or context.resilient_parsing:
        return name
    found = devices.parse_machine(name)
    if machine == AUTO_MACHINE and found.devices > 1:
        text = f"judged for {found.devices} devices; `train` takes no more than the recipe names, or NPROC_PER_NODE"
        print_lines(text, err=True)
    elif found.note:
        print_lines(found.note, err=True)
    return name


def require_known_machine(_context: click.Context, _parameter: click.Parameter, machine: str | None) -> str | None:
    """Return the value of `--machine` unchanged, `auto` included. Raises click.UsageError if the machine is not
    known."""
    if machine not in (None, AUTO_MACHINE):
        try:
            devices.parse_machine(machine)
        except RecipeError as err:
            raise click.UsageError(f"{err}; `auto` is this machine") from None
    return machine


def _this_machine(context: click.Context) -> str:
    """Return the name of this machine, such as `8xa100-80g`, and print the machine and notes on it to standard error.
    Raises NoAcceleratorError if the machine has no accelerator."""
    from validator.knowledge import releases
    from validator.machine import installed_packages, this_machine  # runs drivers' programs: only where it is asked for

    try:
        machine = this_machine.require_machine()
    except RecipeError as err:
        raise NoAcceleratorError(f"--machine auto: {err}") from None
    for line in (f"this machine: {machine}", *(note.text for note in machine.notes())):
        print_lines(line, err=True)
    context.meta[_HOST_RAM_KEY] = machine.host_ram_gib
    versions = installed_packages.find_installed().versions((*releases.ENGINE_FIELDS, _BITSANDBYTES))
    quantizing = versions.pop(_BITSANDBYTES, None)
    packages = {"packages": f"{_BITSANDBYTES}=={quantizing}"} if quantizing else {}
    context.meta[_INSTALLED_KEY] = {**versions, **packages}
    return machine.machine


def installed_releases() -> Mapping[str, str]:
    """Return the releases of DeepSpeed, torch and bitsandbytes on this machine, as fields of a header block, if
    `--machine auto` was given; else an empty mapping."""
    installed: Mapping[str, str] = click.get_current_context().meta.get(_INSTALLED_KEY, {})
    return installed


class NumberInRange(click.FloatRange):
    """A number within bounds. click's own range type accepts nan, which is neither below nor above a bound; this type
    refuses it. `unit`: what the number counts, such as GiB."""

    def __init__(self, least: float, most: float | None = None, unit: str = "") -> None:
        super().__init__(least, most)
        self._unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if self._unit and (number_with_unit := re.fullmatch(r"(?i)\s*([\d.]+)\s*([gt]i?b?)\s*", str(value))):
            written = float(number_with_unit[1].strip(".") or 0) * (1024 if number_with_unit[2][0] in "tT" else 1)
            self.fail(f"{value!r} is a number with a unit; write {written:g}, a number of {self._unit}.", param, ctx)
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


class Count(click.IntRange):
    """A whole number within bounds. For a number such as 10k or 10,000 the error names the digits to write. `kilo`: the
    number that k stands for."""

    def __init__(self, least: int, most: int, kilo: int = 1000) -> None:
        super().__init__(least, most)
        self._kilo = kilo

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if short := re.fullmatch(r"(?i)(\d{1,6}(?:\.\d{1,6})?)([km])", str(value)):
            written = round(float(short[1]) * self._kilo ** (1 if short[2] in "kK" else 2))
        elif re.fullmatch(r"\d{1,3}(?:[,.' ]\d{3})+", str(value)):
            written = int(re.sub(r"\D", "", str(value)))
        else:
            number: int = super().convert(value, param, ctx)
            return number
        return self.fail(f"{value!r} is not written in digits; write {written}.", param, ctx)


def resolve_host_ram(context: click.Context, _parameter: click.Parameter, gib: float | None) -> float | None:
    """Return the main memory in GiB that --host-ram gives. Without --host-ram, return the main memory of this machine
    if `--machine auto` was given, and otherwise None. click reads options on the command line before it fills in
    defaults, so that `--machine auto` has been handled by then."""
    return gib if gib is not None else context.meta.get(_HOST_RAM_KEY)


def machine_words(machine: str | None, host_ram: float | None) -> list[str]:
    """Return the options --machine and --host-ram as they were given, for a further command; empty for `--machine
    auto`, which `train` takes by itself."""
    if _HOST_RAM_KEY in click.get_current_context().meta:
        return []
    given = [("--machine", machine), ("--host-ram", f"{host_ram:g}" if host_ram else None)]
    return [word for name, value in given if value for word in (name, value)]


def require_known_network(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    """Return the network's name. Raises click.UsageError for a network that is not known."""
    if name is not None:
        try:
            devices.parse_network(name)
        except RecipeError as err:
            raise click.UsageError(str(err)) from None
    return name


def require_price(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """Return the value of --price unchanged. Raises click.UsageError if it is not an amount with a currency, such as
    `1.99 USD`."""
    if text is not None:
        from validator.plan.own_prices import require_currency  # only where one is given

        try:
            require_currency(text)
        except RecipeError as err:
            raise click.UsageError(str(err)) from None
    return text


def require_hours(_context: click.Context, _parameter: click.Parameter, number: float | None) -> float | None:
    """Return the number of hours. Raises click.UsageError unless it is above 0 and at most a year."""
    if number is not None and not 0 < number <= _HOURS_PER_YEAR:
        raise click.UsageError(f"hours are a number above 0 and at most {_HOURS_PER_YEAR:,}, not {number:g}")
    return number


def read_user_data(context: click.Context, _parameter: click.Parameter, path: str | None) -> UserData | None:
    """Return the description of the user's data file or folder; None if the option is not given. Raises
    click.UsageError if --columns is given without it."""
    if context.resilient_parsing:
        return None
    columns = named_columns_of(context.params.get("columns"))
    if path is None:
        if columns:
            raise click.UsageError("--columns names the columns of your data; give --data FILE")
        return None
    if data := user_data.read_user_data(Path(path), columns):
        return data
    dataset.require_packages(f"`{path}`")
    from validator.dataset.user_input import read_user_data

    return read_user_data(Path(path), columns=columns)


def named_columns_of(text: str | None) -> dict[str, str]:
    """Return the columns that --columns names, by part; empty without the option."""
    return named_columns.parse_columns(text) if text is not None else {}


def require_columns(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """Return the value of --columns unchanged. Raises click.UsageError if it names no columns."""
    try:
        named_columns_of(text)
    except RecipeError as err:
        raise click.UsageError(f"--columns: {err}") from None
    return text


def locate_recipe(recipe: str, overrides: Sequence[str] = ()) -> bundled_recipes.LocatedRecipe:
    """Return the recipe for which the argument RECIPE of a command stands, as `bundled_recipes.locate_recipe` does, and
    tell the user if a path stands for a recipe of the catalogue. Raises click.UsageError for overrides that are
    none."""
    require_settings(recipe, overrides)
    located = bundled_recipes.locate_recipe(recipe, overrides)
    if located.path != "-" and "://" not in recipe:
        try:
            os.lstat(located.path)
        except (FileNotFoundError, NotADirectoryError):
            if not near_path(located.path):
                found = f"{located.path}: no such file"
                raise RecipeError(f"{found}; {bundled_recipes.NEW_RECIPE} makes a recipe") from None
        except (OSError, ValueError):
            pass  # such as a name that is too long, which is told when the file is read
    if note := bundled_recipes.catalogue_note(recipe):
        print_lines(note, err=True)
    return located


def require_settings(recipe: str, overrides: Sequence[str]) -> None:
    """Raise click.UsageError if one of the overrides is a machine or another recipe."""
    for word in overrides:
        if "=" not in word and devices.is_machine(word):
            raise click.UsageError(f"`{word}` is no KEY=VALUE; write `--machine {word}`")
        if word.endswith(RECIPE_SUFFIXES) and "=" not in word:
            if os.path.lexists(f"{recipe} {word}"):
                raise RecipeError(f"a name with a space is quoted: `{shell_quote(f'{recipe} {word}')}`")
            first = f"; the recipe comes first: `{word} {recipe}`" if "=" in recipe else "; give one recipe at a time"
            raise click.UsageError(f"`{word}` is no KEY=VALUE{first}")
        if "=" not in word and hints.names_data(word):
            raise click.UsageError(f"`{word}` is no KEY=VALUE; {hints.about_data(word, recipe in hints.REGISTERING)}")


def load_configured(path: str, overrides: Sequence[str], starts_here: bool = False) -> Document:
    """Return the recipe in a file, with the overrides and the settings of its configuration file applied. Raises
    RecipeError if one of them cannot be used. `starts_here`: the run starts on this machine, where every path must
    be."""
    document = configured(load_with_overrides(path, overrides))
    every_path_here = document.options._replace(paths="error", path_prefixes=None)
    return replace(document, options=every_path_here) if starts_here else document


MACHINE_OPTION = click.option("--machine", metavar="M", callback=resolve_machine_to_judge, help=MACHINE_HELP)
HOST_RAM_OPTION = click.option(
    "--host-ram",
    type=NumberInRange(1, _MAX_HOST_RAM_GIB, "GiB"),
    metavar="GIB",
    callback=resolve_host_ram,
    help="Main memory of a node.",
)
NETWORK_OPTION = click.option(
    "--network", metavar="N", callback=require_known_network, help="Between nodes: ethernet-25g, 8xinfiniband-400g …"
)
PRICE_OPTION = click.option(
    "--price", metavar="P", callback=require_price, help="Of a device and hour, such as '1.99 USD'."
)
FORMAT_OPTION = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", help="Text is default."
)
DATA_OPTION = click.option(
    "--data",
    metavar="FILE",
    callback=read_user_data,
    help="Your own data, a file or folder; its entry is written, too.",
)
# Eager, because the option of the data reads it.
COLUMNS_OPTION = click.option(
    "--columns",
    metavar="PART=COLUMN,…",
    is_eager=True,
    callback=require_columns,
    help="Which column of your data is what, such as prompt=frage,response=antwort.",
)


_MISSING_PACKAGES = "--simulate needs {}, which this Python lacks; run `pip install torch llamafactory=={}`"


def _require_simulation_packages(context: click.Context, _parameter: click.Parameter, simulate: bool) -> bool:
    """Return whether --simulate is given. Raises click.UsageError, with the command that installs them, if packages for
    it are missing."""
    if simulate and not context.resilient_parsing:
        from validator.knowledge import releases  # only where it is asked for
        from validator.simulation import session

        if missing := session.missing_packages():
            raise click.UsageError(_MISSING_PACKAGES.format(", ".join(missing), releases.newest_pair()[0]))
    return simulate


@contextmanager
def open_session(simulate: bool, variants: int = 0) -> Iterator[SimulationSession | None]:
    """Within the `with` block, provide a session that can simulate a run and `variants` changed versions of it; None if
    `simulate` is false. The child process that simulates ends with the block."""
    if not simulate:
        yield None
        return
    from validator.simulation import session

    with session.SimulationSession(lambda line: print_lines(line, err=True), variants) as simulations:
        yield simulations


@contextmanager
def open_simulator(simulate: bool, variants: int = 0) -> Iterator[Callable[[RunSettings], RunSettings] | None]:
    """Within the `with` block, provide a function that returns a copy of a run whose memory may be simulated; None if
    `simulate` is false. `variants` is the number of changed versions of the run that can be simulated, too."""
    with open_session(simulate, variants) as simulations:
        if simulations is None:
            yield None
            return
        from validator.simulation import predict

        yield lambda one: predict.with_simulations(one, simulations)


def simulation_of(run: RunSettings) -> SimulationFigures | None:
    """Return the figures of a run's simulation; None if nothing was simulated."""
    from validator.simulation.predict import Simulation

    return run.memory_source.figures(run) if isinstance(run.memory_source, Simulation) else None


SIMULATE_OPTION = click.option("--simulate", is_flag=True, callback=_require_simulation_packages,
                      help="Step the real class through with tensors that hold no values: for models that no formula "
                      "knows. Needs torch and LLaMA-Factory, and seconds.")  # fmt: skip


def complete_recipes(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the catalogue's recipes whose names begin with the text typed so far."""
    return [name for name in bundled_recipes.recipe_names() if name.startswith(begun)]


def complete_recipes_and_files(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the catalogue's recipes whose names begin with the text typed so far, and let the shell add files."""
    recipes = [CompletionItem(name) for name in complete_recipes(context, parameter, begun)]
    return [*recipes, CompletionItem(begun, type="file")]


def complete_recipes_and_deepspeed_files(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the catalogue's recipes and DeepSpeed files whose names begin with the text typed so far."""
    return [
        name
        for name in (*bundled_recipes.recipe_names(), *bundled_recipes.deepspeed_file_names())
        if name.startswith(begun)
    ]


def complete_models(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the known models whose short names begin with the text typed so far."""
    shorts = (find_model(key).short or key for key in offered_models())
    return [name for name in shorts if name.startswith(begun)]
