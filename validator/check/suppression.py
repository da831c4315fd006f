"""Comments in a recipe that suppress findings (`# lmf-recipes: ignore TRA009, PAR101`), and `--select` and
`--ignore`.

At the end of a line a comment holds for the findings on that line, and for those in a file that the line names;
on a line of its own before the first key, for the whole recipe. Errors of reading cannot be suppressed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from validator.errors import RecipeError
from validator.finding import Diagnostic, Report, Severity
from validator.recipe.recipe_file import Document
from validator.recipe.suggestions import suggest, unknown_name
from validator.rules import all_rules
from validator.rules.rule import MAX_FINDINGS

# What a comment that suppresses findings begins with.
_COMMENT_MARK = "lmf-recipes:"
_IGNORE_COMMENT = rf"(?<!\S)#[ \t]*{_COMMENT_MARK}[ \t]*ignore\b(.*)$"


_Mark = tuple[str, int | None]  # a code, and a line or the whole recipe


class Suppression(NamedTuple):
    """One code of a comment, and where it stands. `whole_file`: it counts for the whole recipe."""

    code: str
    line: int
    column: int
    whole_file: bool

    @property
    def mark(self) -> _Mark:
        """Return the code that it suppresses, and the line; no line for the whole recipe."""
        return self.code, None if self.whole_file else self.line


def cannot_be_suppressed(diagnostic: Diagnostic) -> bool:
    """True if the finding is always shown, because without it nothing more can be said of the file."""
    return diagnostic.code.startswith("LOA") and diagnostic.severity is Severity.ERROR


def without_suppressed(document: Document, diagnostics: list[Diagnostic], as_written: bool) -> list[Diagnostic]:
    """Return the findings without those that comments suppress, and a finding for each comment that suppresses nothing.
    `as_written`: the run has no overrides; only then is a comment known to suppress nothing."""
    if _COMMENT_MARK not in document.text:
        return diagnostics
    suppressions = list(_read_suppressions(document))
    marks = {one.mark for one in suppressions}
    kept = [each for each in diagnostics if marks.isdisjoint(_suppressing_marks(each))]
    useless = list(islice(_useless_comments(suppressions, diagnostics, as_written), MAX_FINDINGS + 1))
    if len(useless) > MAX_FINDINGS:
        useless[MAX_FINDINGS] = useless[MAX_FINDINGS]._replace(
            message=f"more than {MAX_FINDINGS} comments suppress nothing"
        )
    return kept + useless


def _suppressing_marks(diagnostic: Diagnostic) -> set[_Mark]:
    """Return the marks that suppress a finding: its code on its line, or at the top of the recipe. A finding in another
    file is suppressed on a line that names the file."""
    if cannot_be_suppressed(diagnostic):
        return set()
    own = [diagnostic.line] if diagnostic.path is None else [place.line for place in diagnostic.related]
    return {(diagnostic.code, line) for line in [None, *own]}


def _read_suppressions(document: Document) -> Iterator[Suppression]:
    """Yield the codes of every comment. A comment without any code counts as one empty code."""
    keys = document.body_tree.position(())[0] if document.body_tree else 1
    for number, line in enumerate(document.text.splitlines(), 1):
        comment = re.search(_IGNORE_COMMENT, line) if _COMMENT_MARK in line else None
        if comment:
            whole_file = number < keys and not line[: comment.start()].strip()
            words = [(comment.start(1) + word.start(), word[0]) for word in re.finditer(r"[^\s,]+", comment[1])]
            for offset, code in words or [(comment.start(), "")]:
                yield Suppression(code.upper(), number, offset + 1, whole_file)


def _useless_comments(
    suppressions: Iterable[Suppression], diagnostics: list[Diagnostic], as_written: bool
) -> Iterator[Diagnostic]:
    """Yield LOA009 for each comment that suppresses nothing."""
    codes, met = all_rules.all_codes(), {mark for each in diagnostics for mark in _suppressing_marks(each)}
    known = frozenset(codes)
    for one in suppressions:
        if not one.code:
            text = "the comment names no code; write one such as `# lmf-recipes: ignore TRA009`"
        elif one.code not in known:
            text = unknown_name("rule", one.code, codes, ", so the comment suppresses nothing")
        elif as_written and one.mark not in met:
            text = f"`{one.code}` suppresses nothing here; remove it"
        else:
            continue
        yield Diagnostic("LOA009", Severity.WARNING, text, one.line, one.column)


class Selection(NamedTuple):
    """Codes or beginnings of codes. An empty `select` selects all; `ignore` wins over `select`."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def holds(self, diagnostic: Diagnostic) -> bool:
        """True if the finding is selected. The finding that a file cannot be read always is."""
        wanted = not self.select or diagnostic.code.startswith(self.select)
        return cannot_be_suppressed(diagnostic) or (wanted and not diagnostic.code.startswith(self.ignore))

    def apply(self, report: Report) -> None:
        """Leave only selected findings in the report."""
        for file in report.files:
            file.diagnostics = [each for each in file.diagnostics if self.holds(each)]


# Of a recipe that is started here: what an accelerate file says of processes and nodes does not count, as the numbers
# are passed beside it; a half-written checkpoint is set aside first.
IGNORED_AT_LAUNCH = Selection(ignore=("PAR305", "PTH018"))


def parse_codes(words: Iterable[str]) -> tuple[str, ...]:
    """Return codes and beginnings of codes from comma-separated words. Raises RecipeError for a word that matches no
    code."""
    wanted = tuple(code.strip().upper() for word in words for code in word.split(",") if code.strip())
    known = all_rules.all_codes() if wanted else []
    for code in wanted:
        if not any(each.startswith(code) for each in known):
            near = suggest(code, [*known, *sorted({each[:3] for each in known})])
            raise RecipeError(f"no rule begins with `{code}`{near}")
    return wanted
