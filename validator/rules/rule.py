"""How a rule is declared: a function from Job to (key, message) pairs, with its code and severity in the decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from validator.diagnostic import Severity
from validator.job.job import Job

# The key the finding points at (None: the whole file), and the message without its code.
Finding = tuple[str | None, str]
Check = Callable[[Job], Iterable[Finding]]


class Rule(NamedTuple):
    """A rule. `manual` is its manual page: the violation in one line, then `Why:`, `Source:` and `Fix:`. It holds from
    the release `since` on, such as "transformers 5.0.0", and before `until`; where one is empty, without that bound.
    `advised`: the nearest change that fits belongs into the message."""

    code: str
    severity: Severity
    check: Check
    manual: str
    since: str = ""
    until: str = ""
    advised: bool = False


def rule(
    code: str, severity: Severity, *, since: str = "", until: str = "", advised: bool = False
) -> Callable[[Check], Rule]:
    """Declare a rule; the function's docstring becomes its manual page."""

    def declare(check: Check) -> Rule:
        return Rule(code, severity, check, (check.__doc__ or "").strip(), since, until, advised)

    return declare
