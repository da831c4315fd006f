"""The recipe itself as `check` judges it for what the run gets here, and the rows of small local data sets."""

from __future__ import annotations

from collections.abc import Iterator

from validator import __version__, dataset
from validator.check import checking
from validator.check.suppression import IGNORED_AT_LAUNCH, Selection
from validator.doctor.check_result import CheckResult, State
from validator.escaping import shell_quote
from validator.finding import Report, Severity
from validator.recipe.recipe_file import Document
from validator.run.settings import RunSettings
from validator.wording import plural

_RECIPE = "recipe"
# check_main_memory (host_checks.py) asks for the main memory of this machine, and what is free of it.
_RULES_TO_ASK = Selection(ignore=(*IGNORED_AT_LAUNCH.ignore, "FIT003", "FIT004"))


def check_recipe(document: Document, machine: str | None, host_ram_gib: float | None) -> Iterator[CheckResult]:
    """Yield each error, and the number of warnings."""
    report = Report(__version__, [checking.check_document(document, machine, host_ram_gib, guarded=False)])
    _RULES_TO_ASK.apply(report)
    errors = [each for each in report.files[0].diagnostics if each.severity is Severity.ERROR]
    yield from (CheckResult("error", _RECIPE, f"{each.message} [{each.code}]") for each in errors)
    warnings = report.count(Severity.WARNING)
    if warnings:
        told = f"`lmf-recipes check {shell_quote(document.path)}` shows them" if document.path != "-" else ""
        yield CheckResult("ok", _RECIPE, f"{warnings} {plural(warnings, 'warning')} of `check`", "", told)
    elif not errors:
        yield CheckResult("ok", _RECIPE, "nothing is wrong with it")


def check_data(run: RunSettings) -> Iterator[CheckResult]:
    """Yield what `data` says of the data sets in short, as `train` does. This starts processes for some data sets, so
    that it cannot be one of the checks that run in threads."""
    told, stops = dataset.summarize_data(run)
    state: State = "error" if stops else "ok"
    yield from (CheckResult(state, "data", words.removeprefix("data: ")) for words in told)
