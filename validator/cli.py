"""The click program: which commands there are, streams, exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click

from validator import __version__
from validator.diagnostic import RecipeError

COMMANDS = ("check", "copy", "data", "diff", "explain", "list", "plan", "rule", "train")


class Commands(click.Group):
    """The modules of validator.commands, each imported when it is asked for: `check` does not pay for the others."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """The command of that name; None where there is none."""
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"validator.commands.{name}").command
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lmf-recipes")
def group() -> None:
    """Fine-tuning recipes for LLaMA-Factory that are known to run, and their validator."""


def main() -> NoReturn:
    """Entry point. Exit codes: 0 no error, 1 findings, 2 usage, 3 our own bug."""
    for stream in (sys.stdout, sys.stderr):
        # File names need not be UTF-8, and a terminal need not show block characters: escape rather than fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _guard(group)
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else 0)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End the process without taking every module down one by one, which takes as long as a twentieth of a check."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader of a pipe has gone, or the disk is full
        code = code or 130
    os._exit(code)


def _guard(command: Callable[[], object]) -> None:
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
