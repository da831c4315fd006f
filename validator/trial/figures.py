"""What `explain --simulate` shows of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Simulation:
    """Peak of live tensors and what the system's tool would show, GiB; counts of the class; the releases that it rests
    on. `whole`: all layers were stepped through, not two shallow copies."""

    allocated: float
    low: float
    expected: float
    high: float
    parameters: int
    trainable_parameters: int
    whole: bool
    releases: Mapping[str, str]
