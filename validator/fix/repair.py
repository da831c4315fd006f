"""Fixes applied until none is left: each is judged again, and taken back where it brings a new finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from validator.diagnostic import Diagnostic, FileReport, Severity
from validator.fix import text
from validator.read.recipe import Document

Judge = Callable[[Document], FileReport]
_Fault = tuple[str, str | None]
_READING = ("LOA", "SCH")
# Each try judges the file again: as often as many fixes ask for, but a large file less often.
_LEAST, _READ = 8, 1 << 19  # tries; characters over all of them
_AGAIN = "there are more fixes than are tried at once: run again"
_UNSAFE = "it may change what is trained: --unsafe-fixes"


@dataclass(eq=False)
class Repair:
    """A recipe on its way: as it is now, what is found in it, and what was done. `refused` says why a fix was not."""

    document: Document
    report: FileReport
    done: list[Diagnostic] = field(default_factory=list)
    refused: dict[_Fault, str] = field(default_factory=dict)


def repair(document: Document, judge: Judge, wanted: Callable[[Diagnostic], bool], unsafe: bool) -> Repair:
    """The recipe after every fix of a wanted finding that can be made, and all findings that are left."""
    now = Repair(document, judge(document))
    together, tries = True, max(_LEAST, _READ // (len(document.text) + 1))
    while safe := [each for each in _fixable(now, wanted) if unsafe or (each.fix and each.fix.safe)]:
        tries -= 1
        if not tries:
            now.refused.update((_fault(each), _AGAIN) for each in safe)
            break
        # What hangs on a key can be judged only once that is written as LLaMA-Factory reads it.
        todo = [each for each in safe if each.code.startswith(_READING)] or safe
        problem = _try(now, todo if together else todo[:1], judge)
        if problem and not together:
            now.refused[_fault(todo[0])] = problem
        together = together and not problem
    return now


def left(now: Repair, wanted: Callable[[Diagnostic], bool]) -> list[tuple[Diagnostic, str]]:
    """Each wanted finding that has a fix and is still there, and why."""
    fixable = [each for each in now.report.diagnostics if each.fix and wanted(each)]
    return [(each, now.refused.get(_fault(each), _UNSAFE)) for each in fixable]


def _fixable(now: Repair, wanted: Callable[[Diagnostic], bool]) -> list[Diagnostic]:
    return [each for each in now.report.diagnostics if each.fix and wanted(each) and _fault(each) not in now.refused]


def _try(now: Repair, todo: list[Diagnostic], judge: Judge) -> str:
    """Make these fixes. If they fail, or bring a warning or an error, return why and leave the document as it is."""
    try:
        after = text.edited(now.document, (edit for each in todo if each.fix for edit in each.fix.edits))
    except text.UnfitError as err:
        return str(err)
    report = judge(after)
    before, behind = _faults(now.report.diagnostics), _faults(report.diagnostics)
    # Of a file that could not be read nothing else was known. A note is no reason to leave an error.
    worse = _faults(each for each in report.diagnostics if each.severity is not Severity.NOTE)
    fresh = worse - before if now.document.judgeable else Counter[_Fault]()
    if fresh:
        return f"it would bring {', '.join(sorted({code for code, _ in fresh}))}"
    if _faults(todo) - (before - behind):
        return "the finding would stay"
    now.document, now.report = after, report
    now.done += todo
    return ""


def _faults(diagnostics: Iterable[Diagnostic]) -> Counter[_Fault]:
    return Counter(map(_fault, diagnostics))


def _fault(diagnostic: Diagnostic) -> _Fault:
    return diagnostic.code, diagnostic.key
