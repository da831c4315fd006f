"""The types of a check: `CheckResult`, which it yields, and `CheckContext`, which it is given."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from validator.knowledge.devices import Machine
from validator.launch.device_allocation import DeviceAllocation
from validator.machine.this_machine import ThisMachine
from validator.run.prediction import Job

State = Literal["ok", "warning", "error"]


class CheckResult(NamedTuple):
    """One line of doctor: its subject (`what`), what was found, what the run wants, and the remedy; the last two may be
    empty. Error: a run would fail. Warning: it may fail, or run otherwise than meant."""

    state: State
    what: str
    found: str
    wanted: str = ""
    remedy: str = ""


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


# The one form of all checks. `train` and `calibrate` run those that start_checks.py lists as well, before a start.
Check = Callable[[Job | None, CheckContext], Iterator[CheckResult]]
