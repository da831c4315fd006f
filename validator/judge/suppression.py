"""Comments in a recipe that suppress findings: `# lmf-recipes: ignore TRA009, PAR101`.

At the end of a line a comment holds for the findings on that line, and for those in a file that the line names; on a
line of its own before the first key, for the whole recipe. Errors of reading cannot be suppressed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from validator.diagnostic import Diagnostic, Severity
from validator.judge import MARK
from validator.read.recipe import Document
from validator.rules import manual
from validator.tables.suggestion import suggest

_COMMENT = rf"(?<!\S)#[ \t]*{MARK}[ \t]*ignore\b(.*)$"


class Suppression(NamedTuple):
    """One code of a comment, and where it stands. `whole`: it holds for the whole recipe."""

    code: str
    line: int
    column: int
    whole: bool

    def holds(self, diagnostic: Diagnostic) -> bool:
        """Whether it suppresses the finding."""
        own = [diagnostic.line] if diagnostic.path is None else [place.line for place in diagnostic.related]
        return self.code == diagnostic.code and not is_fixed(diagnostic) and (self.whole or self.line in own)


def is_fixed(diagnostic: Diagnostic) -> bool:
    """Whether the finding is shown whatever is asked: without it, no more can be said of the file."""
    return diagnostic.code.startswith("LOA") and diagnostic.severity is Severity.ERROR


def suppressed(document: Document, diagnostics: list[Diagnostic], as_written: bool) -> list[Diagnostic]:
    """The findings without those that comments suppress, and with one for each comment that is of no use, which only a
    run without options of the command line can tell."""
    suppressions = list(_suppressions(document))
    kept = [each for each in diagnostics if not any(one.holds(each) for one in suppressions)]
    return kept + list(_useless(suppressions, diagnostics, as_written))


def _suppressions(document: Document) -> Iterator[Suppression]:
    """The codes of every comment; a comment without any counts as one empty code."""
    keys = document.body_tree.position(())[0] if document.body_tree else 1
    for number, line in enumerate(document.text.splitlines(), 1):
        comment = re.search(_COMMENT, line) if MARK in line else None
        if comment:
            whole = number < keys and not line[: comment.start()].strip()
            words = [(comment.start(1) + word.start(), word[0]) for word in re.finditer(r"[^\s,]+", comment[1])]
            for offset, code in words or [(comment.start(), "")]:
                yield Suppression(code.upper(), number, offset + 1, whole)


def _useless(
    suppressions: Iterable[Suppression], diagnostics: list[Diagnostic], as_written: bool
) -> Iterator[Diagnostic]:
    """LOA009."""
    codes = manual.codes()
    for one in suppressions:
        if not one.code:
            text = "the comment names no code; write one such as `# lmf-recipes: ignore TRA009`"
        elif one.code not in codes:
            text = f"`{one.code}` is no rule, so the comment suppresses nothing{suggest(one.code, codes)}"
        elif as_written and not any(one.holds(each) for each in diagnostics):
            text = f"`{one.code}` suppresses nothing here; remove it"
        else:
            continue
        yield Diagnostic("LOA009", Severity.WARNING, text, one.line, one.column)
