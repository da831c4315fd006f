"""Which accelerators the environment leaves to a run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from validator.here.accelerator import Accelerator


def variable(names: Sequence[str]) -> str | None:
    """The first of these variables that is set."""
    return next((name for name in names if name in os.environ), None)


def visible(shown: Sequence[Accelerator], names: Sequence[str]) -> list[Accelerator]:
    """Those that the first of these variables leaves, in its order; all where none is set. As in CUDA, the first word
    that means none ends the list, and the beginning of a UUID stands for it."""
    hiding = variable(names)
    if hiding is None:
        return list(shown)
    left: list[Accelerator] = []
    for word in os.environ[hiding].split(","):
        meant = [device for device in shown if _means(word.strip(), device)]
        if not meant:
            break
        left += [device for device in meant if device not in left]
    return left


def narrowed(name: str, taken: Sequence[Accelerator]) -> str:
    """What of this variable's value leaves these and no other."""
    words = os.environ[name].split(",")
    return ",".join(word.strip() for word in words if any(_means(word.strip(), device) for device in taken))


def _means(word: str, device: Accelerator) -> bool:
    return any(word == name or (word[:4] in ("GPU-", "MIG-") and name.startswith(word)) for name in device.names)
