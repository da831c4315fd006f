"""Running rules on a run: all findings of a choice of rules, and the problems that count against a run that is only
proposed."""

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


def run_rules(chosen: Iterable[Rule], run: RunSettings) -> Iterator[tuple[Rule, Place, str, Fix | None]]:
    """Yield (rule, place, message, definite remedy) of the rules that hold for the recipe's releases; of each the first
    findings, and one more that says that there are others."""
    subjects = cache(lambda about: tuple(about(run)))
    for rule in chosen:
        if not (rule.since or rule.until) or run.releases.requires(rule.since, rule.until):
            found = chain.from_iterable(rule.check(run, *subject) for subject in subjects(rule.about))
            for number, finding in enumerate(found):
                if number == MAX_FINDINGS:
                    yield rule, as_place(finding[0]), _MORE_FINDINGS, None
                    break
                yield rule, as_place(finding[0]), finding[1], finding[2] if len(finding) == 3 else None


class Problem(NamedTuple):
    """A finding that counts against a proposed run."""

    code: str
    key: str | None
    message: str


def find_problems(run: RunSettings, but: tuple[str, ...] = (), warnings: bool = True) -> list[Problem]:
    """Return every error and warning of a proposed run, except this repository's conventions (CUR) and the codes that
    begin with one of `but`. `warnings`: false leaves only errors. The result is kept on the run."""
    asked = (find_problems, but, warnings)
    if asked not in run.derived:
        severities = (ERROR, WARNING) if warnings else (ERROR,)
        judged = (each for each in DECLARED if each.severity in severities and not each.code.startswith(("CUR", *but)))
        found = [Problem(rule.code, place.key, message) for rule, place, message, _ in run_rules(judged, run)]
        run.derived[asked] = found
    problems: list[Problem] = run.derived[asked]
    return problems


# Codes that do not count against a change of a run. Memory is judged by its verdict (FIT) and wasted time by the time
# model (TRA92). No change touches data sets, and DeepSpeed files are looked for in the catalogue, whose data sets are
# not the run's (PTH1).
_NOT_AGAINST_CHANGES = ("FIT", "TRA92", "PTH1")


def accepts_changes(run: RunSettings, warnings: bool = True) -> Callable[[ArgumentChanges], bool]:
    """Return a function that is true for settings that bring no error that the run does not have, nor a warning.
    `warnings`: false leaves warnings out of account."""

    def problems(judged: RunSettings) -> set[tuple[str, str | None]]:
        return {(each.code, each.key) for each in find_problems(judged, _NOT_AGAINST_CHANGES, warnings)}

    return lambda settings: problems(with_arguments(run, settings)) <= problems(run)
