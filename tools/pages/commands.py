"""docs/reference/commands.md: each command as its `--help` describes it."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from validator.cli import COMMANDS, group

WIDTH = 100


def page() -> str:
    """Return the help of every command, in the order of `lmf-recipes --help`."""
    return "\n".join(line for name in COMMANDS for line in _command(name))


def _command(name: str) -> Iterator[str]:
    command = group.get_command(click.Context(group), name)
    if command:
        command._help_option = None  # click keeps it, without `-h` if the command was first asked by itself
    shown = CliRunner().invoke(group, [name, "--help"], prog_name="lmf-recipes", terminal_width=WIDTH)
    yield from (f"## {name}", "", "```text", *shown.stdout.rstrip().splitlines(), "```", "")
