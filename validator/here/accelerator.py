"""An accelerator of this machine, as its driver's program shows it."""

from __future__ import annotations

import math
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


class Shown(NamedTuple):
    """What a driver's program shows: the devices in its order, and what it says of those that it cannot reach."""

    accelerators: list[Accelerator]
    lost: tuple[str, ...] = ()


def number(text: str) -> float | None:
    """A size as these programs print it; None for `[N/A]`, `[Insufficient Permissions]` and their like."""
    try:
        size = float(text)
    except ValueError:
        return None
    return size if 0 <= size < math.inf else None
