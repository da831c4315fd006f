"""This machine, as the checks read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from validator.train.target import Target


class Node(NamedTuple):
    """`root` is where the kernel's files are read from (`proc`, `sys`, `dev`), `environment` that of the run. `target`
    is what the run takes of the devices; None where no run is asked about, or it cannot have what it wants."""

    root: Path = Path("/")
    environment: Mapping[str, str] = os.environ
    target: Target | None = None
