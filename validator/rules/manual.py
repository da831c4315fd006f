"""The manual page of each code: the violation in one line, then `Why:`, `Source:` and `Fix:`.

`Source:` names what the rule foretells: `package/file.py:function` (class, method, field, constant), of the releases in
data/seen.yaml; or `own (what it rests on)`, where it is no package's code. `python -m tools.read_releases drift` lists
the rules whose source another release changed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from validator.diagnostic import Page, RecipeError, Severity
from validator.rules.engine import RULES
from validator.rules.rule import Rule
from validator.tables import data, releases
from validator.tables.suggestion import suggest

_PARTS = r"(?ms)^ *(Why|Source|Fix):(.*?)(?=^ *(?:Why|Source|Fix):|\n\n|\Z)"


def page(code: str) -> Page:
    """The manual page of a code, with the releases that its sources were read in. Raises RecipeError for an unknown
    one."""
    wanted = code.upper()
    pages = data.listing("manual")
    if wanted in pages:
        return _page(pages[wanted]["name"], Severity(pages[wanted]["severity"]), pages[wanted]["text"].strip())
    for rule in RULES:
        if rule.code == wanted:
            return _page(rule.name, rule.severity, rule.manual or _in_source(rule))
    raise RecipeError(f"no rule `{code}`{suggest(wanted, codes())}")


def _in_source(rule: Rule) -> str:
    """The docstring of a rule as it is written, where Python left it out (`-OO`)."""
    import ast
    import inspect

    # Python 3.14 leaves them out of what it parses, too, unless it is told not to.
    tree = compile(inspect.getsource(rule.check), rule.code, "exec", ast.PyCF_ONLY_AST, optimize=0)
    assert isinstance(tree, ast.Module)
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    return (ast.get_docstring(function, clean=False) or "").strip()


def pages(codes: Iterable[str]) -> dict[str, Page]:
    """The manual pages of several codes."""
    return {code: page(code) for code in sorted(codes)}


def codes() -> list[str]:
    """Every code there is, sorted."""
    return sorted([*data.listing("manual"), *(rule.code for rule in RULES)])


def _dated(text: str) -> str:
    packages = sorted({package for package, _, path in (source.partition("/") for source in sources(text)) if path})
    seen = ", ".join(f"{package} {releases.seen(package)}" for package in packages)
    return f"{text}\n\nSeen with: {seen}" if seen else text


def sources(text: str) -> list[str]:
    """What the `Source:` paragraph of a manual page names."""
    paragraph = text.partition("Source:")[2].partition("Fix:")[0]
    return [" ".join(source.split()) for source in paragraph.split(",") if source.strip()]


def remedy(text: str) -> str | None:
    """The `Fix:` paragraph of a manual page, as one line."""
    return _paragraph(text, "Fix") or None


def _page(name: str, severity: Severity, text: str) -> Page:
    return Page(name, severity, text.split("\n")[0], _paragraph(text, "Why"), _paragraph(text, "Fix"), _dated(text))


def _paragraph(text: str, title: str) -> str:
    """What a page says behind a title, as one line."""
    return " ".join(dict(re.findall(_PARTS, text)).get(title, "").split())
