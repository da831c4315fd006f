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
    """A device, or a MIG slice of one, of which a process can use a single one.

    GiB are 2^30 bytes; None: the driver's tool does not say. `used_gib` is in use before a run starts. `visible_ids`:
    index, UUID or MIG id, as CUDA_VISIBLE_DEVICES accepts them; the first is shown to users."""

    product: str
    memory_gib: float | None
    used_gib: float | None
    visible_ids: tuple[str, ...]
    is_mig_slice: bool = False

    @property
    def free_gib(self) -> float | None:
        """GiB that are left for a run."""
        if self.memory_gib is None or self.used_gib is None:
            return None
        return self.memory_gib - self.used_gib


class DriverReading(NamedTuple):
    """One reading of a driver's tool: the devices in its order, and its lines on devices that it cannot reach."""

    accelerators: list[Accelerator]
    unreachable: tuple[str, ...] = ()


MIB_PER_GIB = 1024


def parse_size(text: str) -> float | None:
    """Return a size as driver tools print it; None for `[N/A]`, `[Insufficient Permissions]` and their like."""
    try:
        size = float(text)
    except ValueError:
        return None
    return size if 0 <= size < math.inf else None


class DeviceProcess(NamedTuple):
    """A process with memory on a device. `gib` and `device` (one of the device's `visible_ids`) are None if the
    driver's tool does not say."""

    pid: int
    name: str
    gib: float | None
    device: str | None


def process_owner(pid: int, root: Path = Path("/")) -> str | None:
    """Return the name of the user who runs the process; None if it cannot be seen, as from within a container."""
    try:
        number = (root / "proc" / str(pid)).stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def is_own_process(pid: int, root: Path = Path("/")) -> bool:
    """Return whether the process belongs to the user of this program."""
    try:
        return (root / "proc" / str(pid)).stat().st_uid == os.getuid()
    except OSError:
        return False


def visibility_variable(names: Sequence[str]) -> str | None:
    """Return the first of these variables that is set."""
    return next((name for name in names if name in os.environ), None)


def visible_accelerators(found: Sequence[Accelerator], names: Sequence[str]) -> list[Accelerator]:
    """Return the devices that the first of these variables leaves visible, in its order; all if none is set. As in
    CUDA, the first unknown id ends the list, and a UUID may be shortened to its beginning."""
    hiding = visibility_variable(names)
    if hiding is None:
        return list(found)
    left: list[Accelerator] = []
    for word in os.environ[hiding].split(","):
        meant = [device for device in found if _matches_device(word.strip(), device)]
        if not meant:
            break
        left += [device for device in meant if device not in left]
    return left


def restrict_visible(name: str, kept: Sequence[Accelerator]) -> str:
    """Return the variable's value reduced to these devices, in the user's own notation."""
    words = os.environ[name].split(",")
    return ",".join(word.strip() for word in words if any(_matches_device(word.strip(), device) for device in kept))


def _matches_device(word: str, device: Accelerator) -> bool:
    return any(word == name or (word[:4] in ("GPU-", "MIG-") and name.startswith(word)) for name in device.visible_ids)
