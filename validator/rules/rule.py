"""How a rule is declared, what it yields, and the fixes of a recipe's keys that it can offer to `check --fix`.

A rule is a function from a run to findings: (place, message) or (place, message, fix). Its code, severity and
releases stand in the decorator, its manual page is the docstring. With `about` it is asked once for each of those
subjects (subjects.py), and not at all where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple, TypeVarTuple, overload

from validator.finding import Edit, Fix, Place, Severity
from validator.run.settings import RunSettings

# Where the fault lies, the message without its code, and the fix if the remedy is a definite one (below). A text is the
# value of that key of the recipe or its header block, None the whole file; subjects.py gives places in values and in
# the files that a recipe names.
Finding = tuple[Place | str | None, str] | tuple[Place | str | None, str, Fix | None]
Findings = Iterator[Finding]
Subject = TypeVarTuple("Subject")
Check = Callable[..., Iterable[Finding]]
About = Callable[[RunSettings], Iterable[tuple[Any, ...]]]

# Findings of one rule in a file. Who has more has made one mistake many times, and each may cost a search for what was
# meant.
MAX_FINDINGS = 50

ERROR, WARNING, NOTE = Severity


class FailsAt(StrEnum):
    """The moment at which LLaMA-Factory fails on a value, in the words of a message."""

    PARSING = "at parsing"
    DATASET = "while the data set is read"
    MODEL_LOADING = "while the model loads"
    TRAINER = "when the trainer is built, after the model is loaded"
    FIRST_STEP = "at the first step"
    FIRST_EVALUATION = "at the first evaluation"
    FIRST_SAVE = "at the first save"
    NEVER = "by never ending"


class Violation(NamedTuple):
    """A finding about a key, a value or a release, whose code and severity depend on what is found."""

    code: str
    severity: Severity
    place: Place
    message: str
    fix: Fix | None = None


class Rule(NamedTuple):
    """A rule. `manual` is its manual page: the violation in one line, then `Why:`, `Source:` and `Fix:`. It holds from
    the release `since` on, such as "transformers 5.0.0", and before `until`; where one is empty, without that bound.
    `appends_advice`: the nearest change that fits belongs into the message."""

    code: str
    name: str
    severity: Severity
    check: Check
    manual: str
    about: About
    since: str = ""
    until: str = ""
    appends_advice: bool = False


# Each rule, once its module is imported.
DECLARED: list[Rule] = []


@overload
def rule(
    code: str, severity: Severity, *, since: str = "", until: str = "", appends_advice: bool = False
) -> Callable[[Callable[[RunSettings], Iterable[Finding]]], Rule]: ...


@overload
def rule(
    code: str,
    severity: Severity,
    *,
    about: Callable[[RunSettings], Iterable[tuple[*Subject]]],
    since: str = "",
    until: str = "",
    appends_advice: bool = False,
) -> Callable[[Callable[[RunSettings, *Subject], Iterable[Finding]]], Rule]: ...


def rule(
    code: str,
    severity: Severity,
    *,
    about: About = lambda _run: [()],
    since: str = "",
    until: str = "",
    appends_advice: bool = False,
) -> Callable[[Check], Rule]:
    """Declare a rule; the function's docstring becomes its manual page."""

    def declare(check: Check) -> Rule:
        manual = (check.__doc__ or "").strip()
        DECLARED.append(Rule(code, check.__name__, severity, check, manual, about, since, until, appends_advice))
        return DECLARED[-1]

    return declare


def as_place(where: Place | str | None) -> Place:
    """Return the place that the first part of a finding stands for. A place in the recipe blames the key at its top."""
    if isinstance(where, Place):
        return where if where.key or not where.route else where._replace(key=str(where.route[0]))
    return Place() if where is None else Place((where,), key=where)


def rename_key(key: str, to: str, safe: bool = True, value: str | bool | None = None) -> Fix:
    """Return the fix that gives a key another name, and another value if one is given."""
    name = Edit("rename", key, to)
    return Fix((name,) if value is None else (name, Edit("set", key, value)), safe)


def set_value(key: str, value: str | float | bool | tuple[str, ...], safe: bool = True) -> Fix:
    """Return the fix that gives a key another value."""
    return Fix((Edit("set", key, value),), safe)


def remove_keys(*keys: str, safe: bool = True) -> Fix:
    """Return the fix that removes keys."""
    return Fix(tuple(Edit("remove", key) for key in keys), safe)
