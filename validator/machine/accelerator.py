"""The types that the driver modules return (accelerator, process on an accelerator, one reading of a driver's tool),
and which accelerators CUDA_VISIBLE_DEVICES and its kin leave to a run."""

from __future__ import annotations

import math
import os
import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Accelerator(NamedTuple):
    """GiB are 2^30 bytes; None: not shown. `taken_gib` is in use before a run starts. `names` are the words that mean
    it in the variable that hides devices, the first of them ours; `part`: a slice of a device (MIG), of which a process
    can use one."""

    product: str
    memory_gib: float | None
    taken_gib: float | None
    names: tuple[str, ...]
    part: bool = False

    @property
    def free_gib(self) -> float | None:
        """What is left for a run."""
        if self.memory_gib is None or self.taken_gib is None:
            return None
        return self.memory_gib - self.taken_gib


class DriverReading(NamedTuple):
    """What a driver's program shows: the devices in its order, and what it says of those that it cannot reach."""

    accelerators: list[Accelerator]
    lost: tuple[str, ...] = ()


MIB_PER_GIB = 1024


def parse_size(text: str) -> float | None:
    """A size as these programs print it; None for `[N/A]`, `[Insufficient Permissions]` and their like."""
    try:
        size = float(text)
    except ValueError:
        return None
    return size if 0 <= size < math.inf else None


class DeviceProcess(NamedTuple):
    """`gib` and `device` (a name of the accelerator) are None where the driver's program does not say."""

    pid: int
    name: str
    gib: float | None
    device: str | None


def process_owner(pid: int, root: Path = Path("/")) -> str | None:
    """Who runs the process; None where it is not seen from here, as from within a container."""
    try:
        number = (root / "proc" / str(pid)).stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def is_own_process(pid: int, root: Path = Path("/")) -> bool:
    """Whether the process is the user's own."""
    try:
        return (root / "proc" / str(pid)).stat().st_uid == os.getuid()
    except OSError:
        return False


def visibility_variable(names: Sequence[str]) -> str | None:
    """The first of these variables that is set."""
    return next((name for name in names if name in os.environ), None)


def visible_accelerators(shown: Sequence[Accelerator], names: Sequence[str]) -> list[Accelerator]:
    """Those that the first of these variables leaves, in its order; all where none is set. As in CUDA, the first word
    that means none ends the list, and the beginning of a UUID stands for it."""
    hiding = visibility_variable(names)
    if hiding is None:
        return list(shown)
    left: list[Accelerator] = []
    for word in os.environ[hiding].split(","):
        meant = [device for device in shown if _matches_device(word.strip(), device)]
        if not meant:
            break
        left += [device for device in meant if device not in left]
    return left


def restrict_visible(name: str, taken: Sequence[Accelerator]) -> str:
    """What of this variable's value leaves these and no other."""
    words = os.environ[name].split(",")
    return ",".join(word.strip() for word in words if any(_matches_device(word.strip(), device) for device in taken))


def _matches_device(word: str, device: Accelerator) -> bool:
    return any(word == name or (word[:4] in ("GPU-", "MIG-") and name.startswith(word)) for name in device.names)
