"""Comments in a recipe that suppress findings: `# lmf-recipes: ignore TRA009, PAR101`.

At the end of a line a comment holds for the findings on that line, and for those in a file that the line names; on a
line of its own before the first key, for the whole recipe. Errors of reading cannot be suppressed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from validator.diagnostic import Diagnostic, Severity
from validator.judge import MARK
from validator.read.recipe import Document
from validator.read.text import clip
from validator.rules import manual
from validator.rules.rule import MOST
from validator.tables.suggestion import suggest

_COMMENT = rf"(?<!\S)#[ \t]*{MARK}[ \t]*ignore\b(.*)$"


_Mark = tuple[str, int | None]  # a code, and a line or the whole recipe


class Suppression(NamedTuple):
    """One code of a comment, and where it stands. `whole`: it holds for the whole recipe."""

    code: str
    line: int
    column: int
    whole: bool

    @property
    def mark(self) -> _Mark:
        """What it suppresses."""
        return self.code, None if self.whole else self.line


def is_fixed(diagnostic: Diagnostic) -> bool:
    """Whether the finding is shown whatever is asked: without it, no more can be said of the file."""
    return diagnostic.code.startswith("LOA") and diagnostic.severity is Severity.ERROR


def suppressed(document: Document, diagnostics: list[Diagnostic], as_written: bool) -> list[Diagnostic]:
    """The findings without those that comments suppress, and with one for each comment that is of no use, which only a
    run without options of the command line can tell."""
    suppressions = list(_suppressions(document))
    marks = {one.mark for one in suppressions}
    kept = [each for each in diagnostics if marks.isdisjoint(_marks(each))]
    useless = list(islice(_useless(suppressions, diagnostics, as_written), MOST + 1))
    if len(useless) > MOST:
        useless[MOST] = useless[MOST]._replace(message=f"more than {MOST} comments suppress nothing")
    return kept + useless


def _marks(diagnostic: Diagnostic) -> set[_Mark]:
    """What suppresses a finding: its code on its line, in another file on one that names that, or at the top."""
    if is_fixed(diagnostic):
        return set()
    own = [diagnostic.line] if diagnostic.path is None else [place.line for place in diagnostic.related]
    return {(diagnostic.code, line) for line in [None, *own]}


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
    codes, met = manual.codes(), {mark for each in diagnostics for mark in _marks(each)}
    known = frozenset(codes)
    for one in suppressions:
        if not one.code:
            text = "the comment names no code; write one such as `# lmf-recipes: ignore TRA009`"
        elif one.code not in known:
            text = f"`{clip(one.code)}` is no rule, so the comment suppresses nothing{suggest(one.code, codes)}"
        elif as_written and one.mark not in met:
            text = f"`{one.code}` suppresses nothing here; remove it"
        else:
            continue
        yield Diagnostic("LOA009", Severity.WARNING, text, one.line, one.column)
