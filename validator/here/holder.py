"""A process that holds memory of a device."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import NamedTuple


class Holder(NamedTuple):
    """`gib` and `device` (a name of the accelerator) are None where the driver's program does not say."""

    pid: int
    name: str
    gib: float | None
    device: str | None


def user(pid: int, root: Path = Path("/")) -> str | None:
    """Who runs the process; None where it is not seen from here, as from within a container."""
    try:
        number = (root / "proc" / str(pid)).stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def mine(pid: int, root: Path = Path("/")) -> bool:
    """Whether the process is the user's own."""
    try:
        return (root / "proc" / str(pid)).stat().st_uid == os.getuid()
    except OSError:
        return False
