"""The types that all checks of doctor share: `CheckContext`, what a check reads, and `CheckResult`, what a check
yields."""

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

State = Literal["ok", "note", "warning", "error"]


class CheckResult(NamedTuple):
    """One line of doctor's output. `what` is the subject, `found` the finding, `wanted` what the run needs, `remedy`
    the advice; the last two may be empty. The state `error` means that the run would fail. `warning` means that the run
    may fail, or may behave differently than intended. `note` means that something is worth knowing and no fault."""

    state: State
    what: str
    found: str
    wanted: str = ""
    remedy: str = ""


def result(state: State, found: str, wanted: str = "", remedy: str = "", *, what: str = "") -> CheckResult:
    """Return a line of doctor's output: what was `found`, what the run needs (`wanted`) and the advice (`remedy`).
    `what` is the subject of the line; if it is empty, diagnosis.run_checks writes the name of the check there."""
    return CheckResult(state, what, found, wanted, remedy)


ok, warning, error = partial(result, "ok"), partial(result, "warning"), partial(result, "error")


class CheckContext(NamedTuple):
    """The machine and the environment that the checks look at, read once.

    `root` is the folder with the kernel's files (`proc`, `sys`, `dev`). `machine` describes this machine's devices; it
    is None if no driver's tool shows a device, and `driver_error` is then the tool's message. `recipe_machine` is the
    machine that the recipe is written for. `allocation` holds the devices of this machine that the run gets; if the run
    gets none, `allocation_error` is the reason. `site_packages` are the package folders to read; None stands for those
    of the Python that runs llamafactory-cli."""

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
