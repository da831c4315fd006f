"""The command `rule`: the list of rules, the manual page of one, or the rules whose pages have some words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from inspect import cleandoc

import click

from validator import escaping
from validator.errors import RecipeError
from validator.finding import ManualPage
from validator.rules import all_rules
from validator.rules.rule_search import find_rules, is_rule_code
from validator.wrapping import terminal_width, wrap_line

_MOST_FOUND = 12  # rules that are listed for some words


@click.command("rule", context_settings={"ignore_unknown_options": True})  # `-9` is a word
@click.argument("words", nargs=-1, metavar="[CODE|WORDS]...")
def command(words: Sequence[str]) -> None:
    """List the rules, explain one, or find some by words.

    \b
    lmf-recipes rule FIT001            the manual page of a rule
    lmf-recipes rule out of memory     the rules with these words, best first
    """
    text = " ".join(words).strip()
    if not text:
        lines: Iterable[str] = (_rule_line(code, all_rules.rule_page(code)) for code in all_rules.all_codes())
    elif is_rule_code(text):
        page = all_rules.rule_page(text)
        lines = [f"{text.upper()} ({page.severity.value})", "", *cleandoc(page.text).splitlines()]
    else:
        lines = _found_lines(text)
    click.echo(escaping.escape_lines(part for line in lines for part in wrap_line(line, terminal_width())), nl=False)


def _found_lines(text: str) -> Iterator[str]:
    """Yield one line for each rule that speaks of the text, best first, and what to type next. Raises RecipeError if
    none does."""
    found = find_rules(text)
    if not found:
        raise RecipeError(f"no rule speaks of `{text}`; `lmf-recipes rule` lists all")
    for code, page in found[:_MOST_FOUND]:
        yield _rule_line(code, page)
    more = f"; {len(found) - _MOST_FOUND} more speak of it, further words narrow it" if len(found) > _MOST_FOUND else ""
    yield f"next: `lmf-recipes rule {found[0].code}` for the whole page{more}"


def _rule_line(code: str, page: ManualPage) -> str:
    return f"{code}  {page.severity.value:<8} {page.violation}"
