"""From live tensors to what nvidia-smi or npu-smi shows: context, communication, the allocator's slack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GIB = float(1 << 30)


@dataclass(frozen=True)
class Runtime:
    """What the device kind and its software add. `evidence`: how well this kind has been measured."""

    context_gib: float = 0.5
    evidence: Literal["good", "thin"] = "good"
    expandable_segments: bool = True


def communication(world: int) -> float:
    """Bytes of communication buffers: about 1.5 GiB from the first collective on (measured on two GPUs, accelerate's
    notes on a bare barrier)."""
    return 1.5 * GIB if world > 1 else 0.0


def reserved(allocated: float, fixed: float, runtime: Runtime) -> float:
    """Bytes the caching allocator holds: rounding and fragments of what comes and goes, not of what stays."""
    share = 0.06 if runtime.expandable_segments else 0.15
    return allocated + share * max(allocated - fixed, 0.0)


def band(allocated: float, fixed: float, world: int, runtime: Runtime) -> tuple[float, float, float]:
    """(low, expected, high) in bytes. `fixed`: the part of `allocated` that stays through the whole step."""
    beside = runtime.context_gib * GIB + communication(world)
    expected = reserved(allocated, fixed, runtime) + beside
    spread = 0.05 if runtime.evidence == "good" else 0.10
    low = allocated * (1 - spread) + beside / 2
    high = expected * (1 + spread) + 0.10 * max(allocated - fixed, 0.0)
    return low, expected, high
