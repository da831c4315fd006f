"""What a check returns (`CheckResult`) and what it is given (`CheckContext`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from validator.finding import Severity
from validator.knowledge.devices import Machine
from validator.launch.device_allocation import DeviceAllocation
from validator.machine.this_machine import ThisMachine

# What this machine lacks, in words: an error stops the run.
Shortage = tuple[Severity, str]


State = Literal["ok", "warning", "error"]
_STATE_OF_SEVERITY: dict[Severity, State] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "ok"}


class CheckResult(NamedTuple):
    """`what` was looked at, what is `found`, what the run wants of it (`wanted`) and what to do (`remedy`); the last
    two are empty where there is nothing to say. Error: a run would fail. Warning: it may, or not as it is meant."""

    state: State
    what: str
    found: str
    wanted: str = ""
    remedy: str = ""


def result_of_shortage(what: str, shortage: Shortage) -> CheckResult:
    """What `train` says of this machine, as a line; the remedy is in its words."""
    severity, words = shortage
    return CheckResult(_STATE_OF_SEVERITY[severity], what, words)


class CheckContext(NamedTuple):
    """`root` is where the kernel's files are read from (`proc`, `sys`, `dev`), `environment` that of the run.

    `here` are the devices, None where no driver's program shows any; `fault` is what one says instead. `assumed` is the
    machine that the recipe is written for, `target` what the run takes of this one; where it is `refused`, that says
    why. `folders` hold the packages; None: those that llamafactory-cli imports."""

    root: Path = Path("/")
    environment: Mapping[str, str] = os.environ
    here: ThisMachine | None = None
    fault: str = ""
    assumed: Machine | None = None
    target: DeviceAllocation | None = None
    refused: str = ""
    folders: tuple[str, ...] | None = None
