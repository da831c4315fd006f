"""What is said of one thing that was looked at."""

from __future__ import annotations

from typing import Literal, NamedTuple

from validator.diagnostic import Severity
from validator.train.room import Shortage

State = Literal["ok", "warning", "error"]
_STATES: dict[Severity, State] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "ok"}


class Line(NamedTuple):
    """`what` was looked at, what is `found`, what the run wants of it (`wanted`) and what to do (`remedy`); the last
    two are empty where there is nothing to say. Error: a run would fail. Warning: it may, or not as it is meant."""

    state: State
    what: str
    found: str
    wanted: str = ""
    remedy: str = ""


def of(what: str, shortage: Shortage) -> Line:
    """What `train` says of this machine, as a line; the remedy is in its words."""
    severity, words = shortage
    return Line(_STATES[severity], what, words)
