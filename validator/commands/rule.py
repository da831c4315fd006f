"""`lmf-recipes rule`"""

from __future__ import annotations

from inspect import cleandoc

import click

from validator.rules import manual


@click.command("rule")
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """List the rules, or explain one."""
    for name in [code] if code else manual.codes():
        severity, text = manual.page(name)
        if code:
            click.echo(f"{name.upper()} ({severity.value})\n\n{cleandoc(text)}")
        else:
            click.echo(f"{name}  {severity.value:<8} {text.splitlines()[0]}")
