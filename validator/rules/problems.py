"""Running rules on a run: all findings of a selection of rules, and the problems of a run that `plan` or `explain`
considers proposing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from typing import NamedTuple

from validator.finding import Fix, Place
from validator.rules.rule import DECLARED, ERROR, MAX_FINDINGS, WARNING, Rule, as_place
from validator.run.settings import RunSettings
from validator.run.variants import ArgumentChanges, with_arguments

_MORE_FINDINGS = f"more than {MAX_FINDINGS} findings of this rule; the others are shown once these are mended"


class RuleFinding(NamedTuple):
    """A finding of a rule, before its place is looked up. `fix`: None if there is no definite fix."""

    rule: Rule
    place: Place
    message: str
    fix: Fix | None


def run_rules(chosen: Iterable[Rule], run: RunSettings) -> Iterator[RuleFinding]:
    """Yield each finding of the rules that apply to the package releases which the recipe allows. After a limited
    number of findings of one rule, one more says that there are others."""
    subjects = cache(lambda about: tuple(about(run)))
    for rule in chosen:
        if not (rule.since or rule.until) or run.releases.requires(rule.since, rule.until):
            found = chain.from_iterable(rule.check(run, *subject) for subject in subjects(rule.about))
            for number, finding in enumerate(found):
                if number == MAX_FINDINGS:
                    yield RuleFinding(rule, as_place(finding[0]), _MORE_FINDINGS, None)
                    break
                fix = finding[2] if len(finding) == 3 else None
                yield RuleFinding(rule, as_place(finding[0]), finding[1], fix)


class Problem(NamedTuple):
    """An error or warning about a proposed run."""

    code: str
    key: str | None
    message: str


def find_problems(run: RunSettings, but: tuple[str, ...] = (), warnings: bool = True) -> list[Problem]:
    """Return the errors and warnings about a proposed run, except those of rules on this repository's conventions
    (CUR). `but`: prefixes of further rule codes to leave out. `warnings`: False to return only errors. The result is
    stored on the run."""
    question = (find_problems, but, warnings)
    if question not in run.derived:
        severities = (ERROR, WARNING) if warnings else (ERROR,)
        chosen_rules = (
            each for each in DECLARED if each.severity in severities and not each.code.startswith(("CUR", *but))
        )
        found = [Problem(rule.code, place.key, message) for rule, place, message, _ in run_rules(chosen_rules, run)]
        run.derived[question] = found
    problems: list[Problem] = run.derived[question]
    return problems


# Codes that do not count against a change of a run. Memory is judged by its verdict (FIT). The rules that propose uses
# of free memory, or a release (TRA921, TRA923, TRA924, TRA937), ask for this judgement themselves. No change touches
# data sets, and DeepSpeed files are looked for in the catalogue, whose data sets are not the run's (PTH1).
_NOT_AGAINST_CHANGES = ("FIT", "TRA921", "TRA923", "TRA924", "TRA937", "PTH1")


def accepts_changes(run: RunSettings, warnings: bool = True) -> Callable[[ArgumentChanges], bool]:
    """Return a function that is true for settings that bring no error that the run does not have, nor a warning.
    `warnings`: false leaves warnings out of account."""

    def problems(judged: RunSettings) -> set[tuple[str, str | None]]:
        return {(each.code, each.key) for each in find_problems(judged, _NOT_AGAINST_CHANGES, warnings)}

    return lambda settings: problems(with_arguments(run, settings)) <= problems(run)


def is_free_of_errors(run: RunSettings) -> bool:
    """True if no rule finds an error in the run, apart from memory, which has verdicts of its own."""
    return not find_problems(run, _NOT_AGAINST_CHANGES, warnings=False)
