"""The manual page of each code: the violation in one line, then `Why:` and `Fix:`."""

from __future__ import annotations

from validator.diagnostic import RecipeError, Severity
from validator.rules.engine import RULES
from validator.tables import data
from validator.tables.suggestion import suggest


def page(code: str) -> tuple[Severity, str]:
    """Severity and manual page of a code. Raises RecipeError for an unknown one."""
    wanted = code.upper()
    pages = data.listing("manual")
    if wanted in pages:
        return Severity(pages[wanted]["severity"]), pages[wanted]["text"].strip()
    for rule in RULES:
        if rule.code == wanted:
            return rule.severity, rule.manual
    raise RecipeError(f"no rule `{code}`{suggest(wanted, codes())}")


def codes() -> list[str]:
    """Every code there is, sorted."""
    return sorted([*data.listing("manual"), *(rule.code for rule in RULES)])


def remedy(text: str) -> str | None:
    """The `Fix:` paragraph of a manual page, as one line."""
    _, found, rest = text.partition("Fix:")
    return " ".join(rest.split("\n\n")[0].split()) if found else None
