"""`check --fix`: applies fixes to the text of a recipe, judges the recipe again, and undoes fixes that bring a new
finding; for any number of files."""

from __future__ import annotations

import codecs
import difflib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from validator import escaping
from validator.configuration import CommandLine, configured
from validator.errors import RecipeError
from validator.escaping import RawText
from validator.finding import Diagnostic, FileReport, Severity
from validator.knowledge import file_kinds
from validator.recipe import atomic_write, known_folders, safe_read, text_edits
from validator.recipe.recipe_file import Document, parse_recipe

from . import checking as judge
from .other_files import unreadable_report
from .suppression import is_selected


class OriginalFile(NamedTuple):
    """A file as it was read. `data`: all its bytes. `mark`: its byte order mark, or an empty string. `text`: its text
    after the mark."""

    path: str
    data: bytes
    mark: str
    text: str


def read_original(path: str) -> OriginalFile:
    """Return a file as read from disk, or from standard input for `-`. Raises RecipeError if it cannot be read or is
    not text."""
    data = safe_read.read_bytes(path)
    return OriginalFile(path, data, "\ufeff" if data.startswith(codecs.BOM_UTF8) else "", safe_read.decode_text(data))


def write_fixed(original: OriginalFile, content: str) -> None:
    """Write the fixed text to the file it was read from; for standard input, to standard output. Raises RecipeError if
    the file cannot be written, or was changed since it was read."""
    if original.path == "-":
        sys.stdout.write(content if sys.stdout.isatty() else RawText(original.mark + content))
        return

    def fixed(now: bytes | None) -> str:
        if now != original.data:
            raise RecipeError(f"`{original.path}` was changed while it was fixed; nothing is written to it, run again")
        return original.mark + content

    atomic_write.edit_file(Path(original.path), fixed)


JudgeDocument = Callable[[Document], FileReport]
_FindingKey = tuple[str, str | None]
_READING_CODES = ("LOA", "SCH")
# Each try judges the file again: as often as many fixes ask for, but a large file less often.
_MIN_TRIES, _MAX_CHARACTERS = 8, 1 << 19  # tries; characters over all of them
_RUN_AGAIN = "there are more fixes than are tried at once: run again"
_NEEDS_UNSAFE = "it may change what is trained: --unsafe-fixes"


@dataclass(eq=False)
class FixedDocument:
    """A recipe while its fixes are applied. `document`: its present state. `report`: the findings in this state.
    `done`: the findings that were fixed. `refused`: the reason for each finding that was not fixed, by the finding's
    code and key."""

    document: Document
    report: FileReport
    done: list[Diagnostic] = field(default_factory=list)
    refused: dict[_FindingKey, str] = field(default_factory=dict)


def apply_fixes(
    document: Document, judge: JudgeDocument, wanted: Callable[[Diagnostic], bool], unsafe: bool
) -> FixedDocument:
    """Return the recipe after its fixes, with the findings that are left. `judge`: returns the findings in a recipe.
    `wanted`: returns True for a finding that shall be fixed. `unsafe`: also make fixes that may change what is
    trained."""
    now = FixedDocument(document, judge(document))
    together, tries = True, max(_MIN_TRIES, _MAX_CHARACTERS // (len(document.text) + 1))
    while safe := [
        each
        for each in now.report.diagnostics
        if each.fix and (unsafe or each.fix.safe) and wanted(each) and _finding_key(each) not in now.refused
    ]:
        tries -= 1
        if not tries:
            now.refused.update((_finding_key(each), _RUN_AGAIN) for each in safe)
            break
        # What hangs on a key can be judged only once that is written as LLaMA-Factory reads it.
        todo = [each for each in safe if each.code.startswith(_READING_CODES)] or safe
        problem = _try_fixes(now, todo if together else todo[:1], judge)
        if problem and not together:
            now.refused[_finding_key(todo[0])] = problem
        together = together and not problem
    return now


def skipped_fixes(now: FixedDocument, wanted: Callable[[Diagnostic], bool]) -> list[tuple[Diagnostic, str]]:
    """Return each finding that has a fix and was not fixed, with the reason. `now`: the recipe after its fixes.
    `wanted`: returns True for a finding that shall be fixed; other findings are left out."""
    fixable = [each for each in now.report.diagnostics if each.fix and wanted(each)]
    return [(each, now.refused.get(_finding_key(each), _NEEDS_UNSAFE)) for each in fixable]


def _try_fixes(now: FixedDocument, todo: list[Diagnostic], judge: JudgeDocument) -> str:
    """Make the fixes of the findings `todo`, and return an empty string. Return the reason, and leave the document
    unchanged, if the fixes cannot be made, if they bring a new warning or error, or if a finding stays."""
    try:
        after = text_edits.apply_edits(now.document, (edit for each in todo if each.fix for edit in each.fix.edits))
    except text_edits.UnfitError as err:
        return str(err)
    report = judge(after)
    before, behind = _finding_keys(now.report.diagnostics), _finding_keys(report.diagnostics)
    # Of a file that could not be read nothing else was known. A note is no reason to leave an error.
    worse = _finding_keys(each for each in report.diagnostics if each.severity is not Severity.NOTE)
    fresh = worse - before if now.document.judgeable else Counter[_FindingKey]()
    if fresh:
        return f"it would bring {', '.join(sorted({code for code, _ in fresh}))}"
    if _finding_keys(todo) - (before - behind):
        return "the finding would stay"
    now.document, now.report = after, report
    now.done += todo
    return ""


def _finding_keys(diagnostics: Iterable[Diagnostic]) -> Counter[_FindingKey]:
    return Counter(map(_finding_key, diagnostics))


def _finding_key(diagnostic: Diagnostic) -> _FindingKey:
    return diagnostic.code, diagnostic.key


class CheckOptions(NamedTuple):
    """Options of `check_files`, in the order of its parameters. `machine`: the machine to judge for; None for the
    recipe's. `host_ram_gib`: GiB of main memory per node; None for the usual server's. `trial`: a function that adds
    simulations to a run; None for no simulation. `installed`: releases of packages that the run will find."""

    machine: str | None
    host_ram_gib: float | None
    trial: judge.Simulate | None
    installed: judge.Installed = MappingProxyType({})


class FixRequest(NamedTuple):
    """What `check --fix` shall do. `target`: the options under which files are judged. `unsafe`: also make fixes that
    may change what is trained. `diff`: show the change instead of writing it. `among`: the files, and the folders of
    files, that may be changed; None if all may. `asked`: what the command line says about findings, of which only those
    that are shown are fixed; None to read no configuration file either."""

    target: CheckOptions
    unsafe: bool
    diff: bool
    among: frozenset[Path] | None = None
    asked: CommandLine | None = None


class FixedFile(NamedTuple):
    """A file after its fixes. `report`: the findings that are left. `before`, `after`: the file as it was read, and its
    new text. `before` is None for a file that was only judged, not fixed."""

    report: FileReport
    before: OriginalFile | None = None
    after: str = ""

    @property
    def changed(self) -> bool:
        """True if a fix changed the text."""
        return self.before is not None and self.before.text != self.after


def fix_subject(subject: str | Document, request: FixRequest, seen: set[str]) -> Iterator[FixedFile]:
    """Yield each file of a subject with its fixes made. The subject is a path, a folder, or a document that was read
    already. `seen`: real paths of files that were fixed before, which are skipped; new ones are added. Some files are
    judged without fixing: documents, files that are no recipes, files that are not in `request.among`, and links to
    files outside of the repository."""
    if isinstance(subject, Document):
        yield FixedFile(judge.check_document(subject, *request.target, asked=request.asked))
        return
    for path in judge.expand_path(subject):
        if isinstance(path, FileReport):
            yield FixedFile(path)
            continue
        if (real := os.path.realpath(path)) in seen:
            continue
        seen.add(real)
        is_kept = request.among is not None and request.among.isdisjoint((Path(path), *Path(path).parents))
        if is_kept or not (path == "-" or known_folders.is_in_repository(path, path)):
            yield FixedFile(judge.check_file(path, *request.target, asked=request.asked))
            continue
        try:
            original = read_original(path)
        except RecipeError as err:
            yield FixedFile(unreadable_report(path, str(err)))
            continue
        kind = file_kinds.kind_of_text(original.text) if path == "-" else file_kinds.kind_of_file(path)
        if not kind.may_be_recipe:
            yield FixedFile(judge.check_other_kind(path, kind, request.asked), original, original.text)
            continue
        document = configured(parse_recipe(path, original.text), request.asked)
        wanted = partial(is_selected, document.options)
        now = apply_fixes(document, partial(_check_all, request), wanted, request.unsafe)
        now.report.fixed, now.report.not_fixed = now.done, skipped_fixes(now, wanted)
        now.report.diagnostics = [each for each in now.report.diagnostics if wanted(each)]
        yield FixedFile(now.report, original, now.document.text)


def _check_all(request: FixRequest, document: Document) -> FileReport:
    """Return all findings of a recipe, also those that are not shown: a fix must not bring one of them."""
    document = configured(document, request.asked)
    shown = document.options._replace(select=(), ignore=())
    return judge.check_document(replace(document, options=shown), *request.target)


def write_fixed_file(fixed: FixedFile) -> bool:
    """Write a file if its fixes changed it, and return True; text from standard input is always passed on to standard
    output. If the file cannot be written, print the reason to standard error and return False."""
    if fixed.before is None or not (fixed.changed or fixed.before.path == "-"):
        return True
    try:
        write_fixed(fixed.before, fixed.after)
    except RecipeError as err:
        sys.stderr.write(escaping.escape_lines([f"lmf-recipes: {err}"]))
        return False
    return True


def format_diff(before: OriginalFile, after: str) -> str:
    """Return the change of a file as a unified diff."""
    old, new = before.text.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, before.path, before.path)
    return escaping.escape_lines(each for line in lines for each in _diff_line_without_end(line))


def _diff_line_without_end(line: str) -> Iterator[str]:
    """Yield a line of a diff without its line break. For the last line of a file that lacks a line break, also yield
    diff's note about that."""
    yield line.removesuffix("\n").removesuffix("\r")
    if not line.endswith("\n"):
        yield "\\ No newline at end of file"
