"""Comments in a recipe that suppress findings (`# lmf-recipes: ignore TRA009, PAR101`), and the options `--select` and
`--ignore`.

A comment at the end of a line applies to the findings on that line, and to those in a file that the line names. A
comment on a line of its own before the first key applies to the whole recipe. Errors in reading the file cannot be
suppressed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from validator.finding import Diagnostic, FindingOptions, Severity
from validator.recipe.recipe_file import Document
from validator.recipe.suggestions import unknown_name
from validator.rules import all_rules
from validator.rules.rule import MAX_FINDINGS
from validator.run.settings import RunSettings

# What a comment that suppresses findings begins with.
_COMMENT_MARK = "lmf-recipes:"
_IGNORE_COMMENT = rf"(?<!\S)#[ \t]*{_COMMENT_MARK}[ \t]*ignore\b(.*)$"
# The first word is a code, and so are the next ones that look like one; the rest is the reason.
_CODES = re.compile(r"[\s:]*[^\s,:]+(?:[\s,]+[A-Za-z]{3}(?=\w*\d)\w+)*")


_Mark = tuple[str, int | None]  # a code, and a line or the whole recipe


class Suppression(NamedTuple):
    """One code in a comment that suppresses findings. `line`, `column`: where the code stands. `whole_file`: True if
    the comment applies to the whole recipe."""

    code: str
    line: int
    column: int
    whole_file: bool

    @property
    def mark(self) -> _Mark:
        """The code that is suppressed and its line; the line is None if the comment applies to the whole recipe."""
        return self.code, None if self.whole_file else self.line


def cannot_be_suppressed(diagnostic: Diagnostic) -> bool:
    """True if neither comments nor options can hide the finding: an error in reading the file, which prevents any other
    finding."""
    return diagnostic.code.startswith("LOA") and diagnostic.severity is Severity.ERROR


def without_suppressed(document: Document, diagnostics: list[Diagnostic], run: RunSettings) -> list[Diagnostic]:
    """Return the findings that no comment suppresses, and a new finding for each comment that suppresses nothing in the
    run."""
    if _COMMENT_MARK not in document.text:
        return diagnostics
    suppressions = list(_read_suppressions(document))
    marks = {one.mark for one in suppressions}
    kept = [each for each in diagnostics if marks.isdisjoint(_suppressing_marks(each))]
    useless = list(islice(_useless_comments(suppressions, diagnostics, run), MAX_FINDINGS + 1))
    if len(useless) > MAX_FINDINGS:
        useless[MAX_FINDINGS] = useless[MAX_FINDINGS]._replace(
            message=f"more than {MAX_FINDINGS} comments suppress nothing"
        )
    return kept + useless


def _suppressing_marks(diagnostic: Diagnostic) -> set[_Mark]:
    """Return the pairs (code, line) that suppress a finding if a comment contains one of them. The line is that of the
    finding; for a finding in another file, each line of the recipe that names this file. The line None stands for the
    whole recipe."""
    if cannot_be_suppressed(diagnostic):
        return set()
    lines = [diagnostic.line] if diagnostic.path is None else [place.line for place in diagnostic.related]
    return {(diagnostic.code, line) for line in [None, *lines]}


def _read_suppressions(document: Document) -> Iterator[Suppression]:
    """Yield each code of each suppressing comment in a recipe. For a comment without codes, yield one empty code."""
    keys = document.body_tree.position(())[0] if document.body_tree else 1
    for number, line in enumerate(document.text.splitlines(), 1):
        comment = re.search(_IGNORE_COMMENT, line) if _COMMENT_MARK in line else None
        if comment:
            whole_file = number < keys and not line[: comment.start()].strip()
            codes = _CODES.match(line, comment.start(1))
            words = re.finditer(r"[^\s,:]+", codes[0]) if codes else ()
            for offset, code in [(comment.start(1) + each.start(), each[0]) for each in words] or [
                (comment.start(), "")
            ]:
                yield Suppression(code.upper(), number, offset + 1, whole_file)


def _useless_comments(
    suppressions: Iterable[Suppression], diagnostics: list[Diagnostic], run: RunSettings
) -> Iterator[Diagnostic]:
    """Yield a finding LOA009 for each comment that names no code, an unknown code, or a code that suppresses
    nothing."""
    codes, met = all_rules.all_codes(), {mark for each in diagnostics for mark in _suppressing_marks(each)}
    known_codes = frozenset(codes)
    has_errors = any(each.severity is Severity.ERROR for each in diagnostics)
    for one in suppressions:
        if not one.code:
            text = "the comment names no code; write one such as `# lmf-recipes: ignore TRA009`"
        elif one.code not in known_codes:
            text = unknown_name("rule", one.code, codes, ", so the comment suppresses nothing")
        elif one.mark not in met and _is_judged(one.code, run, has_errors):
            text = f"`{one.code}` suppresses nothing here; remove it"
        else:
            continue
        yield Diagnostic("LOA009", Severity.WARNING, text, one.line, one.column)


def _is_judged(code: str, run: RunSettings, has_errors: bool) -> bool:
    """True if a rule would have found something if there was anything to find. It may not if an error hides the rest,
    or if the machine, the model, the number of steps or the files are those of another run of `check`: one on the
    training machine, with the configuration, or without options that change the run."""
    if not run.is_unmodified or code.startswith(("SCH", "LOA")):
        return run.is_unmodified
    if code.startswith("PTH"):
        return run.workspace.options.paths == "error"
    return not has_errors and bool(run.machine and run.model and run.steps)


def is_selected(options: FindingOptions, diagnostic: Diagnostic) -> bool:
    """True if the finding is to be shown. An error in reading the file always is. A note on what is fine as it is must
    be asked for, by `pedantic` or by its code."""
    code = diagnostic.code
    if code in all_rules.PEDANTIC_CODES and not options.pedantic and code not in options.select:
        return False
    is_wanted = not options.select or code.startswith(options.select)
    return cannot_be_suppressed(diagnostic) or (is_wanted and not code.startswith(options.ignore))


# Of a recipe that is started here: what an accelerate file says of processes and nodes does not count, as the numbers
# are passed beside it; a half-written checkpoint is set aside first.
IGNORED_AT_LAUNCH = ("PAR305", "PTH018")
