"""What is said of one thing that was looked at."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "warning", "error"]


class Line(NamedTuple):
    """`what` was looked at, what is `found`, what the run wants of it (`wanted`) and what to do (`remedy`); the last
    two are empty where there is nothing to say. Error: a run would fail. Warning: it may, or not as it is meant."""

    state: State
    what: str
    found: str
    wanted: str = ""
    remedy: str = ""
