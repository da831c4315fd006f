"""The click group: which commands exist, in the order of the help."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from validator import __version__, escaping
from validator.commands import hints

# In the order of use.
COMMANDS = (
    "plan",
    "list",
    "copy",
    "data",
    "check",
    "explain",
    "calibrate",
    "doctor",
    "train",
    "submit",
    "diff",
    "rule",
)
_EPILOG = "Start with `lmf-recipes plan --machine 2xrtx-4090`, or `--machine auto` for this machine."


class Commands(click.Group):
    """The commands of validator.commands; each module is imported only when its command is used."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Return the command of that name; None if there is none."""
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"validator.commands.{name}").command
        return command

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the words name, with its arguments. Raises click.UsageError, whose message names the
        command that was probably meant."""
        if words[0] in COMMANDS or words[0].startswith("-"):
            return super().resolve_command(context, words)
        raise click.UsageError(f"`{words[0]}` is not a command; {hints.meant_command(words)}", context)


# click takes the sequences of colours out of what goes to a file; here none goes out, so that both see the same.
@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "color": True}, epilog=_EPILOG)
@click.version_option(__version__, prog_name="lmf-recipes")
def group() -> None:
    """Fine-tuning recipes for LLaMA-Factory, and whether one will run on a machine."""


def run_cli(words: Sequence[str]) -> NoReturn:
    """Run the program on the words of the command line, and exit with the code of the outcome."""
    words = list(words)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    try:
        sys.exit(group.main(words, standalone_mode=False))
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.exceptions.NoArgsIsHelpError as err:
        click.echo(err.format_message(), err=True)
        sys.exit(err.exit_code)
    except click.ClickException as err:
        err.message += hints.hint(err, words)  # type: ignore[misc]  # as below
        err.message = escaping.escape_line(err.message)  # type: ignore[misc]  # which words of the command line stand in
        err.show()
        sys.exit(err.exit_code)
