"""Lines for people, put together from parts that a stranger may have written."""

from __future__ import annotations

import click

from validator import printable


def say(*lines: str, err: bool = False) -> None:
    """Print the lines; an end of line within one is shown. With `err` on standard error."""
    click.echo(printable.lines(lines), nl=False, err=err)
