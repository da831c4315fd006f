"""The command `diff`: what a copy changed against a recipe, as text or JSON."""

from __future__ import annotations

import json

import click

from validator import escaping
from validator.catalogue.recipe_diff import Comparison, MemorySummary, compare_recipes
from validator.commands import options
from validator.output.terminal import emit


@click.command("diff")
@click.argument("name", shell_complete=options.complete_recipes_and_files)
@click.argument("file", type=click.Path(), shell_complete=options.complete_recipes_and_files)
@options.FORMAT_OPTION
def command(name: str, file: str, form: str) -> None:
    """Show what FILE changed against the recipe NAME.

    Exit code 0 whether or not it did.
    """
    emit(compare_recipes(name, file), form, format_comparison)


def format_comparison(comparison: Comparison) -> str:
    """Return the comparison as lines of text."""
    lines = [f"  {key}: {_format_value(old)} -> {_format_value(new)}" for key, (old, new) in comparison.changed.items()]
    lines += [f"+ {key}: {_format_value(value)}" for key, value in comparison.added.items()]
    lines += [f"- {key}: {_format_value(value)}" for key, value in comparison.removed.items()]
    lines = lines or ["  no setting differs"]
    return escaping.escape_lines(
        [*lines, _memory_line("before", comparison.before), _memory_line("after", comparison.after)]
    )


def _memory_line(when: str, need: MemorySummary) -> str:
    if need.device_gib is None:
        return f"{when}: memory is not known"
    return f"{when}: {need.device_gib} GiB per device, {need.host_gib} per node, {need.verdict}"


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
