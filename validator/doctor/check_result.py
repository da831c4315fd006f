"""The types of a check: `CheckResult`, which it yields, and `CheckContext`, which it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from validator.knowledge.devices import Machine
from validator.launch.device_allocation import DeviceAllocation
from validator.machine.this_machine import ThisMachine
from validator.run.settings import RunSettings

State = Literal["ok", "warning", "error"]


class CheckResult(NamedTuple):
    """One line of doctor: its subject (`what`), what was found, what the run wants, and the remedy; the last two may be
    empty. Error: a run would fail. Warning: it may fail, or run otherwise than meant."""

    state: State
    what: str
    found: str
    wanted: str = ""
    remedy: str = ""


def result(state: State, found: str, wanted: str = "", remedy: str = "", *, what: str = "") -> CheckResult:
    """Return a line of doctor. `what` is left out if it is the name of the check in diagnosis.CHECKS."""
    return CheckResult(state, what, found, wanted, remedy)


ok, warning, error = partial(result, "ok"), partial(result, "warning"), partial(result, "error")


class CheckContext(NamedTuple):
    """The machine and the environment as the checks see them, read once.

    `root` is where the kernel's files are read from (`proc`, `sys`, `dev`). `machine` are the devices here; None if no
    driver's tool shows any, and `driver_error` is what the tool says instead. `recipe_machine` is the machine that the
    recipe is written for, `allocation` what the run gets of this one; if it gets nothing, `allocation_error` says why.
    `site_packages` are the folders of packages; None: those of the Python that runs llamafactory-cli."""

    root: Path = Path("/")
    environment: Mapping[str, str] = os.environ
    machine: ThisMachine | None = None
    driver_error: str = ""
    recipe_machine: Machine | None = None
    allocation: DeviceAllocation | None = None
    allocation_error: str = ""
    site_packages: tuple[str, ...] | None = None


# The one form of all checks. `train` and `calibrate` run those that start_checks.py lists as well, before a start.
Check = Callable[[RunSettings | None, CheckContext], Iterator[CheckResult]]
