"""The command `rule`: the list of rules, or the manual page of one."""

from __future__ import annotations

from inspect import cleandoc

import click

from validator.rules import all_rules


@click.command("rule")
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """List the rules, or explain one."""
    for name in [code] if code else all_rules.all_codes():
        page = all_rules.rule_page(name)
        if code:
            click.echo(f"{name.upper()} ({page.severity.value})\n\n{cleandoc(page.text)}")
        else:
            click.echo(f"{name}  {page.severity.value:<8} {page.violation}")
