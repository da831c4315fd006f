"""Which codes are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from validator.diagnostic import Diagnostic, RecipeError, Report
from validator.judge.suppression import is_fixed
from validator.rules import manual
from validator.tables.suggestion import suggest


class Selection(NamedTuple):
    """Codes or their beginnings. Without `select` all are asked for; `ignore` wins over it."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def holds(self, diagnostic: Diagnostic) -> bool:
        """Whether the finding is asked for; that a file cannot be read always is."""
        wanted = not self.select or diagnostic.code.startswith(self.select)
        return is_fixed(diagnostic) or (wanted and not diagnostic.code.startswith(self.ignore))

    def apply(self, report: Report) -> None:
        """Leave in the report what is asked for."""
        for file in report.files:
            file.diagnostics = [each for each in file.diagnostics if self.holds(each)]


# Of a recipe that is started here: what an accelerate file says of processes and nodes does not count, as the numbers
# are passed beside it; a half-written checkpoint is set aside first.
STARTED = Selection(ignore=("PAR305", "PTH018"))


def codes(words: Iterable[str]) -> tuple[str, ...]:
    """Codes and beginnings of codes from comma-separated words. Raises RecipeError for one that matches nothing."""
    wanted = tuple(code.strip().upper() for word in words for code in word.split(",") if code.strip())
    known = manual.codes() if wanted else []
    for code in wanted:
        if not any(each.startswith(code) for each in known):
            near = suggest(code, [*known, *sorted({each[:3] for each in known})])
            raise RecipeError(f"no rule begins with `{code}`{near}")
    return wanted
