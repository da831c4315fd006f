"""How a rule is declared, what it yields, and the fixes of a recipe's keys that it can offer to `check --fix`.

A rule is a function from a run to findings: (place, message) or (place, message, fix). The decorator states the rule's
code, severity and releases; its docstring is its manual page. A rule with `about` is called once for each subject, such
as each data set (subjects.py), and not at all if the run has no such subject."""

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
    """The moment at which LLaMA-Factory fails on a wrong value, as text for a message."""

    PARSING = "at parsing"
    DATASET = "while the data set is read"
    MODEL_LOADING = "while the model loads"
    TRAINER = "when the trainer is built, after the model is loaded"
    FIRST_STEP = "at the first step"
    FIRST_EVALUATION = "at the first evaluation"
    FIRST_SAVE = "at the first save"
    NEVER = "by never ending"
    UNTRAINED = "without a word: the weights that it saves are NaN, or as they were"


class Violation(NamedTuple):
    """A finding about a key, a value or a release. Its code and severity are chosen for each finding, whereas a `Rule`
    has one code and one severity."""

    code: str
    severity: Severity
    place: Place
    message: str
    fix: Fix | None = None


class Rule(NamedTuple):
    """A rule. `manual`: its manual page, the violation in one line, then `Why:`, `Source:` and `Fix:`. `about`: returns
    the subjects of a run for which the rule is called. `since`: the first release to which the rule applies, such as
    "transformers 5.0.0"; `until`: the first release to which it no longer applies; empty for no bound.
    `appends_advice`: True if the message shall end with the smallest change that makes the run fit its machine.
    `pedantic`: True if the note is about what is fine as it is, so that it is shown only if it is asked for."""

    code: str
    name: str
    severity: Severity
    check: Check
    manual: str
    about: About
    since: str = ""
    until: str = ""
    appends_advice: bool = False
    pedantic: bool = False


# Each rule, once its module is imported.
DECLARED: list[Rule] = []


@overload
def rule(
    code: str,
    severity: Severity,
    *,
    since: str = "",
    until: str = "",
    appends_advice: bool = False,
    pedantic: bool = False,
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
    pedantic: bool = False,
) -> Callable[[Callable[[RunSettings, *Subject], Iterable[Finding]]], Rule]: ...


def rule(
    code: str,
    severity: Severity,
    *,
    about: About = lambda _run: [()],
    since: str = "",
    until: str = "",
    appends_advice: bool = False,
    pedantic: bool = False,
) -> Callable[[Check], Rule]:
    """Declare a function as a rule; its docstring becomes the rule's manual page. `about`: returns the subjects of a
    run; the rule is called once for each subject, with the subject's parts as arguments after the run. `since`,
    `until`: the first release to which the rule applies, and the first to which it no longer applies. `appends_advice`:
    end the message with the smallest change that makes the run fit its machine. `pedantic`: show the note only if
    notes on what is fine as it is are asked for."""

    def declare(check: Check) -> Rule:
        manual = (check.__doc__ or "").strip()
        facts = (manual, about, since, until, appends_advice, pedantic)
        DECLARED.append(Rule(code, check.__name__, severity, check, *facts))
        return DECLARED[-1]

    return declare


def as_place(where: Place | str | None) -> Place:
    """Return the place of a finding. `where`: a place; or a key of the recipe or its header block, for the place of
    this key; or None, for the file as a whole. A place that names no key to blame gets the first key of its route."""
    if isinstance(where, Place):
        return where if where.key or not where.route else where._replace(key=str(where.route[0]))
    return Place() if where is None else Place((where,), key=where)


def rename_key(key: str, to: str, safe: bool = True, value: str | bool | None = None) -> Fix:
    """Return a fix that gives a key another name and, if `value` is given, another value. `safe`: False if the fix may
    change what is trained."""
    name = Edit("rename", key, to)
    return Fix((name,) if value is None else (name, Edit("set", key, value)), safe)


def set_value(key: str, value: str | float | bool | tuple[str, ...], safe: bool = True) -> Fix:
    """Return a fix that sets a key to another value. `safe`: False if the fix may change what is trained."""
    return Fix((Edit("set", key, value),), safe)


def remove_keys(*keys: str, safe: bool = True) -> Fix:
    """Return a fix that removes these keys. `safe`: False if the fix may change what is trained."""
    return Fix(tuple(Edit("remove", key) for key in keys), safe)
