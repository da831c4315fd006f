"""This machine, as the checks read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from validator.here.machine import Here
from validator.tables.machines import Machine
from validator.train.target import Target


class Node(NamedTuple):
    """`root` is where the kernel's files are read from (`proc`, `sys`, `dev`), `environment` that of the run.

    `here` are the devices, None where no driver's program shows any; `fault` is what one says instead. `assumed` is the
    machine that the recipe is written for, `target` what the run takes of this one; where it is `refused`, that says
    why. `folders` hold the packages; None: those that llamafactory-cli imports."""

    root: Path = Path("/")
    environment: Mapping[str, str] = os.environ
    here: Here | None = None
    fault: str = ""
    assumed: Machine | None = None
    target: Target | None = None
    refused: str = ""
    folders: tuple[str, ...] | None = None
