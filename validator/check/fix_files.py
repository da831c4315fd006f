"""Fix the files that a path stands for (`check --fix`), or show the change as a unified diff (`check --diff`).

Only recipes are fixed. DeepSpeed files, catalogue recipes and links out of the repository are only judged."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from validator import escaping
from validator.check import autofix
from validator.check import checking as judge
from validator.check.autofix import OriginalFile
from validator.check.suppression import Selection
from validator.errors import RecipeError
from validator.finding import FileReport
from validator.recipe import known_folders
from validator.recipe.recipe_file import Document, parse_recipe


class CheckOptions(NamedTuple):
    """The machine, its main memory and the simulation that files are judged for, as `check_files` takes them."""

    machine: str | None
    host_ram_gib: float | None
    trial: judge.Simulate | None


class FixRequest(NamedTuple):
    """A request to fix files: the target, the findings that count, whether fixes may change what is trained, and if the
    change is only shown. `among`: the files that may be changed, where not all."""

    target: CheckOptions
    selection: Selection
    unsafe: bool
    diff: bool
    among: frozenset[str] | None = None


class FixedFile(NamedTuple):
    """A file after its fixes: the findings that are left, its text before and after. `before` is None for a file that
    is only judged."""

    report: FileReport
    before: OriginalFile | None = None
    after: str = ""

    @property
    def changed(self) -> bool:
        """Whether a fix was made."""
        return self.before is not None and self.before.text != self.after


def fix_subject(subject: str | Document, request: FixRequest, seen: set[str]) -> Iterator[FixedFile]:
    """The files that a subject stands for, but those that were `seen` by another name; a recipe of the catalogue, a
    DeepSpeed file and a link to a file outside of the repository are only judged."""
    if isinstance(subject, Document):
        yield FixedFile(judge.check_document(subject, *request.target))
        return
    for path in judge.expand_path(subject):
        if isinstance(path, FileReport):
            yield FixedFile(path)
            continue
        if (real := os.path.realpath(path)) in seen:
            continue
        seen.add(real)
        other = path.endswith(".json") or (request.among is not None and path not in request.among)
        if other or not (path == "-" or known_folders.is_in_repository(path, path)):
            yield FixedFile(judge.check_file(path, *request.target))
            continue
        try:
            original = autofix.read_original(path)
        except RecipeError as err:
            yield FixedFile(judge.unreadable_report(path, str(err)))
            continue
        document, wanted = parse_recipe(path, original.text), request.selection.holds
        now = autofix.apply_fixes(
            document, lambda each: judge.check_document(each, *request.target), wanted, request.unsafe
        )
        now.report.fixed, now.report.not_fixed = now.done, autofix.skipped_fixes(now, request.selection.holds)
        yield FixedFile(now.report, original, now.document.text)


def write_fixed_file(fixed: FixedFile) -> bool:
    """Write a file that changed, or say why not; standard input goes on to standard output."""
    if fixed.before is None or not (fixed.changed or fixed.before.path == "-"):
        return True
    try:
        autofix.write_fixed(fixed.before, fixed.after)
    except RecipeError as err:
        sys.stderr.write(escaping.escape_lines([f"lmf-recipes: {err}"]))
        return False
    return True


def format_diff(before: OriginalFile, after: str) -> str:
    """The change in the unified format."""
    old, new = before.text.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, before.path, before.path)
    return escaping.escape_lines(each for line in lines for each in _diff_line_without_end(line))


def _diff_line_without_end(line: str) -> Iterator[str]:
    """A line of a change without its end, of either form, and what is said where it has none."""
    yield line.removesuffix("\n").removesuffix("\r")
    if not line.endswith("\n"):
        yield "\\ No newline at end of file"
