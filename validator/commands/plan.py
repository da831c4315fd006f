"""`lmf-recipes plan`"""

from __future__ import annotations

import sys

import click

from validator.commands import complete, options
from validator.plan import answer as planner
from validator.plan.rows import rows
from validator.show import placed, plans, structure


@click.command("plan")
@click.option(
    "--model",
    metavar="M",
    help="Such as qwen3-14b; without it, models are proposed for --samples.",
    shell_complete=complete.models,
)
@click.option("--machine", metavar="M", required=True, callback=options.known, help=options.TARGET)
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Good samples there are.")
@options.RAM
@click.option("--cutoff-len", type=click.IntRange(min=8), metavar="N", help="Longest sample in tokens; default 2048.")
@click.option("--method", type=click.Choice(["lora", "qlora", "full", "freeze"]), help="Only this method.")
@click.option("--stage", type=click.Choice(["sft", "dpo", "pt"]), default="sft", help="Default: sft.")
@click.option("--fsdp", is_flag=True, help="Shard with FSDP instead of ZeRO.")
@options.FORMAT
@click.option("--write", metavar="FILE", help="Write the first plan as a recipe.")
def command(
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
    if model is None and samples is None:
        raise click.UsageError("give --model, or --samples to have models proposed")
    if model is None and (method or fsdp or stage != "sft"):
        raise click.UsageError("--method, --stage and --fsdp are for one model; give --model")
    answer = planner.answer(model, machine, samples, host_ram, cutoff_len, method, stage, fsdp)
    shown = rows(answer)
    click.echo(structure.text(shown) if form == "json" else plans.text(shown), nl=False)
    if write:
        click.echo(placed.text(planner.write(answer.best, write)), nl=False, err=form == "json")
    sys.exit(0 if answer.best else 1)
