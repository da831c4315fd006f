"""The click program: files, streams, exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from validator import __version__
from validator.diagnostic import RecipeError, Severity

if TYPE_CHECKING:
    from validator.job.job import Job

_MACHINE = click.option("--machine", metavar="M", help="Target, such as 8xascend-910b-64g or 2x8xa100-80g.")
_RAM = click.option("--host-ram", type=click.FloatRange(min=1), metavar="GIB", help="Main memory of a node.")
_FORMATS = click.Choice(["text", "json", "github", "sarif"])
_FORMAT = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Text is default.")


def _names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    from validator.recipes import copying

    return [name for name in copying.names() if name.startswith(begun)]


def _models(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    from validator.tables import models

    shorts = (models.model(key).short or key for key in models.model_ids())
    return [name for name in shorts if name.startswith(begun)]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lmf-recipes")
def group() -> None:
    """Fine-tuning recipes for LLaMA-Factory that are known to run, and their validator."""


@group.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@_MACHINE
@_RAM
@click.option("--format", "form", type=_FORMATS, default="text", help="Text is default.")
@click.option("--strict", is_flag=True, help="Exit 1 on warnings, too.")
def check(paths: Sequence[str], machine: str | None, host_ram: float | None, form: str, strict: bool) -> None:
    """Report every problem of recipes and DeepSpeed files (default: recipes/)."""
    from validator.judge import check as checker
    from validator.show import report as reports

    _require_machine(machine)
    found = checker.check(paths or ["recipes"], machine, host_ram)
    click.echo(reports.FORMATS[form](found), nl=False)
    failed = found.count(Severity.ERROR) or (strict and found.count(Severity.WARNING))
    sys.exit(1 if failed else 0)


@group.command()
@click.argument("recipe", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@_MACHINE
@_RAM
@_FORMAT
def explain(recipe: str, overrides: Sequence[str], machine: str | None, host_ram: float | None, form: str) -> None:
    """Show where every GiB goes, the verdict, and the nearest changes."""
    from validator.advise import explain as explainer
    from validator.job import job
    from validator.read import loader
    from validator.show import chart

    _require_machine(machine)
    document = loader.with_overrides(_readable(recipe), overrides)
    found = explainer.explain(_known(job.resolve(document, machine, host_ram)), overrides)
    click.echo(json.dumps(found, indent=2) if form == "json" else chart.text(found), nl=form == "json")


@group.command(name="list")
@click.option("--machine", metavar="M", help="Only recipes that run on this machine.")
@click.option("--model", metavar="M", help="Only recipes for this model.", shell_complete=_models)
@click.option("--method", metavar="M", help="Only this method or variant: lora, qlora, full, dpo, fsdp, 32k, galore …")
@_FORMAT
def list_recipes(machine: str | None, model: str | None, method: str | None, form: str) -> None:
    """List the catalogue."""
    from validator.recipes import catalogue

    _require_machine(machine)
    rows = catalogue.rows(machine, model, method)
    click.echo(json.dumps(rows, indent=2) if form == "json" else catalogue.table(rows), nl=form == "json")


@group.command()
@click.option(
    "--model",
    metavar="M",
    help="Such as qwen3-14b; without it, models are proposed for --samples.",
    shell_complete=_models,
)
@click.option("--machine", metavar="M", required=True, help="Target, such as 8xascend-910b-64g or 2x8xa100-80g.")
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Good samples there are.")
@_RAM
@click.option("--cutoff-len", type=click.IntRange(min=8), metavar="N", help="Longest sample in tokens; default 2048.")
@click.option("--method", type=click.Choice(["lora", "qlora", "full", "freeze"]), help="Only this method.")
@click.option("--stage", type=click.Choice(["sft", "dpo", "pt"]), default="sft", help="Default: sft.")
@click.option("--fsdp", is_flag=True, help="Shard with FSDP instead of ZeRO.")
@_FORMAT
@click.option("--write", metavar="FILE", help="Write the first plan as a recipe.")
def plan(
    model: str | None,
    machine: str,
    samples: int | None,
    host_ram: float | None,
    cutoff_len: int | None,
    method: str | None,
    stage: str,
    fsdp: bool,
    form: str,
    write: str | None,
) -> None:
    """Show what fits a machine, best first; exit code 1 where nothing does.

    Speed goes by the work that a step adds: `fastest` keeps all activations, `fast` computes them twice, `medium` also
    gathers weights from other devices, `slow` updates the optimizer in host memory, `slowest` fetches weights from it.
    """
    from validator.plan import answer as planner
    from validator.plan import planned
    from validator.recipes import copying

    if model is None and samples is None:
        raise click.UsageError("give --model, or --samples to have models proposed")
    if model is None and (method or fsdp or stage != "sft"):
        raise click.UsageError("--method, --stage and --fsdp are for one model; give --model")
    _require_machine(machine)
    answer = planner.answer(model, machine, samples, host_ram, cutoff_len, method, stage, fsdp)
    click.echo(json.dumps(answer.found, indent=2) if form == "json" else planned.text(answer.found), nl=form == "json")
    if write:
        click.echo(copying.text(planner.write(answer.best, write)), nl=False, err=form == "json")
    sys.exit(0 if answer.best else 1)


@group.command()
@click.argument("source", metavar="RECIPE|FILE")
@click.option("--model", metavar="M", help="Such as qwen3-8b; for a data file, or instead of the recipe's.")
@click.option("--near/--no-near", default=None, help="Look for near duplicates; default: up to 200,000 rows.")
@_FORMAT
@click.option("--html", metavar="FILE", help="Write one self-contained page, too.")
def data(source: str, model: str | None, near: bool | None, form: str, html: str | None) -> None:
    """Show what will be trained: rows, drops, steps, lengths, amount and quality; exit code 1 where the run stops."""
    from validator.study import command

    found = command.study(source, model, near, html)
    click.echo(command.FORMATS[form](found), nl=False)
    sys.exit(1 if found["problems"] else 0)


@group.command()
@click.argument("name", shell_complete=_names)
@click.argument("dest", type=click.Path())
def copy(name: str, dest: str) -> None:
    """Copy a recipe of the catalogue, with what it reads, to the file or folder DEST."""
    from validator.recipes import copying

    click.echo(copying.text(copying.copy(name, dest)), nl=False)


@group.command()
@click.argument("name", shell_complete=_names)
@click.argument("file", type=click.Path())
@_FORMAT
def diff(name: str, file: str, form: str) -> None:
    """Show what FILE changed against the recipe NAME of the catalogue (exit code 0 whether or not it did)."""
    from validator.recipes import comparison

    found = comparison.compare(name, file)
    click.echo(json.dumps(found, indent=2) if form == "json" else comparison.text(found), nl=form == "json")


@group.command(context_settings={"ignore_unknown_options": False})
@click.argument("recipe", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--dry-run", is_flag=True, help="Check, and print the command instead of running it.")
def train(recipe: str, overrides: Sequence[str], dry_run: bool) -> None:
    """Check a recipe, then hand it to llamafactory-cli."""
    from validator.diagnostic import Report
    from validator.job import job
    from validator.judge import check as checker
    from validator.read import loader
    from validator.show import report as reports
    from validator.tables import releases
    from validator.train import handoff, launch

    if recipe == "-":
        raise click.UsageError("llamafactory-cli reads a recipe from a file; save it first")
    document = loader.with_overrides(_readable(recipe), overrides)
    report = Report(__version__, [checker.check_document(document)])
    if report.files[0].diagnostics:
        click.echo(reports.text(report), nl=False, err=True)
    if report.count(Severity.ERROR):
        sys.exit(1)
    found = job.resolve(document)
    _tell_of_data(found)
    prepared = handoff.prepare(found, overrides)
    if dry_run:
        for line in launch.commands(str(prepared.recipe), prepared.overrides, *_size(found), engine=bool(found.zero)):
            click.echo(line)
        return
    for problem in releases.outside(found.header, launch.installed(releases.FIELDS)):
        raise RecipeError(problem)
    launch.preflight(*_size(found), found.machine.device.vendor if found.machine else "cpu")
    code = launch.run(prepared.recipe, prepared.overrides, prepared.variables)
    if code == 0 and prepared.output:
        for path in handoff.results(prepared.output):
            click.echo(f"saved: {path}")
    elif code:
        click.echo(f"lmf-recipes: llamafactory-cli ended with exit code {code}", err=True)
    sys.exit(code)


def _tell_of_data(job: Job) -> None:
    """Say in short what `data` says of small local data sets; end here where the run would stop at them."""
    from validator.study import brief

    lines, stops = brief.brief(job)
    for line in lines:
        click.echo(line, err=True)
    if stops:
        sys.exit(1)


@group.command()
@click.argument("code", required=False)
def rule(code: str | None) -> None:
    """List the rules, or explain one."""
    from validator.rules import manual

    for name in [code] if code else manual.codes():
        severity, text = manual.page(name)
        if code:
            click.echo(f"{name.upper()} ({severity.value})\n\n{_dedent(text)}")
        else:
            click.echo(f"{name}  {severity.value:<8} {text.splitlines()[0]}")


def _dedent(text: str) -> str:
    first, _, rest = text.partition("\n")
    return first + "\n" + "\n".join(line.removeprefix("    ") for line in rest.splitlines())


def _readable(path: str) -> Any:
    from validator.read import loader

    if path.endswith(".json"):
        raise RecipeError(f"`{path}` is a JSON file; give the recipe (.yaml) that uses it")
    document = loader.load(path)
    if not document.readable:
        problem = next(d for d in document.problems if d.severity is Severity.ERROR)
        raise RecipeError(f"{path}:{problem.line}:{problem.column}: {problem.message} [{problem.code}]")
    if not document.values:
        raise RecipeError(f"{path}:1:1: holds no key; a recipe needs at least a model [LOA006]")
    return document


def _known(found: Any) -> Any:
    """The job, where model and machine are known. Raises RecipeError where there is nothing to explain."""
    missing = None if found.model else "names no model; set `model_name_or_path`"
    problem = found.model_problem or found.machine_problem or missing
    if problem:
        raise RecipeError(f"{found.path}: {problem}")
    return found


def _require_machine(text: str | None) -> None:
    """A machine on the command line that is not known is wrong usage, not a finding in a file."""
    from validator.tables import machines

    if text is not None:
        try:
            machines.machine(text)
        except RecipeError as err:
            raise click.UsageError(str(err)) from None


def _size(found: Any) -> tuple[int, int]:
    return (found.machine.nodes, found.machine.devices) if found.machine else (1, 1)


def main() -> None:
    """Entry point. Exit codes: 0 no error, 1 findings, 2 usage, 3 our own bug."""
    for stream in (sys.stdout, sys.stderr):
        # File names need not be UTF-8, and a terminal need not show block characters: escape rather than fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _guard(group)


def _guard(command: Callable[[], Any]) -> None:
    try:
        command()
    except RecipeError as err:
        click.echo(f"lmf-recipes: {err}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
    except Exception as err:
        import tempfile
        import traceback

        with tempfile.NamedTemporaryFile("w", suffix=".log", prefix="lmf-recipes-", delete=False) as log:
            traceback.print_exc(file=log)
        click.echo(f"lmf-recipes: internal error ({type(err).__name__}: {err}); details in {Path(log.name)}", err=True)
        sys.exit(3)
