"""`check --fix` and `check --diff`."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from validator import __version__, printable
from validator.commands import plain
from validator.diagnostic import FileReport, RecipeError, Report
from validator.fix import file, repair
from validator.fix.file import Original
from validator.judge import check as judge
from validator.judge.selection import Selection
from validator.read.recipe import Document, parse
from validator.tables import repository


class Target(NamedTuple):
    """What files are judged for, as `judge.check` takes it."""

    machine: str | None
    host_ram_gib: float | None
    trial: judge.Trial | None


class Request(NamedTuple):
    """What is asked for: the target, the findings that count, whether fixes may change what is trained, and whether the
    change is shown in place of being written. `among`: the files that may be changed, where not all."""

    target: Target
    selection: Selection
    unsafe: bool
    diff: bool
    among: frozenset[str] | None = None


class Fixed(NamedTuple):
    """What is left to find in a file, and its text before and after; no `before` of one that is only judged."""

    report: FileReport
    before: Original | None = None
    after: str = ""

    @property
    def changed(self) -> bool:
        """Whether a fix was made."""
        return self.before is not None and self.before.text != self.after


def fix(paths: Sequence[str], request: Request, form: str, strict: bool) -> NoReturn:
    """Fix the files and print what is left to find. With `diff` print the changes only, and exit with 1 where there are
    any."""
    seen: set[str] = set()
    results = [each for path in paths for each in _fixed(plain.subject(path), request, seen)]
    if request.diff:
        sys.stdout.write("".join(_diff(each.before, each.after) for each in results if each.before))
        sys.exit(1 if any(each.changed for each in results) else 0)
    failed = [not _written(each) for each in results]
    report = Report(__version__, [each.report for each in results])
    request.selection.apply(report)
    streamed = any(each.before and each.before.path == "-" for each in results)
    plain.show(report, form, strict, sys.stderr if streamed else sys.stdout, any(failed))


def _fixed(subject: str | Document, request: Request, seen: set[str]) -> Iterator[Fixed]:
    """The files that a subject stands for, but those that were `seen` by another name; a recipe of the catalogue, a
    DeepSpeed file and a link to a file outside of the repository are only judged."""
    if isinstance(subject, Document):
        yield Fixed(judge.check_document(subject, *request.target))
        return
    for path in judge.expand(subject):
        if isinstance(path, FileReport):
            yield Fixed(path)
            continue
        if (real := os.path.realpath(path)) in seen:
            continue
        seen.add(real)
        other = path.endswith(".json") or (request.among is not None and path not in request.among)
        if other or not (path == "-" or repository.holds(path, path)):
            yield Fixed(judge.check_file(path, *request.target))
            continue
        try:
            original = file.read(path)
        except RecipeError as err:
            yield Fixed(judge.unread(path, str(err)))
            continue
        now = repair.repair(parse(path, original.text), _judge(request), request.selection.holds, request.unsafe)
        now.report.fixed, now.report.left = now.done, repair.left(now, request.selection.holds)
        yield Fixed(now.report, original, now.document.text)


def _judge(request: Request) -> repair.Judge:
    return lambda document: judge.check_document(document, *request.target)


def _written(fixed: Fixed) -> bool:
    """Write a file that changed, or say why not; standard input goes on to standard output."""
    if fixed.before is None or not (fixed.changed or fixed.before.path == "-"):
        return True
    try:
        file.write(fixed.before, fixed.after)
    except RecipeError as err:
        sys.stderr.write(printable.lines([f"lmf-recipes: {err}"]))
        return False
    return True


def _diff(before: Original, after: str) -> str:
    """The change in the unified format."""
    old, new = before.text.splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, before.path, before.path)
    return printable.lines(each for line in lines for each in _ended(line))


def _ended(line: str) -> Iterator[str]:
    """A line of a change without its end, of either form, and what is said where it has none."""
    yield line.removesuffix("\n").removesuffix("\r")
    if not line.endswith("\n"):
        yield "\\ No newline at end of file"
