"""Memory of the worst device: the largest of the moments."""

from __future__ import annotations

from .allocator import Runtime, band
from .estimate import Estimate
from .moments import MOMENTS
from .states import resident
from .workload import Architecture, Workload


def device_memory(arch: Architecture, workload: Workload, runtime: Runtime | None = None) -> Estimate:
    """Peak of live tensors on the worst device, by term, and what the device's own tool would show. Bytes."""
    moment, terms = max(
        ((name, make(arch, workload)) for name, make in MOMENTS.items()), key=lambda pair: sum(pair[1].values())
    )
    terms = {name: value for name, value in terms.items() if value}
    allocated = sum(terms.values())
    fixed = sum(resident(arch, workload).values())
    low, expected, high = band(arch, workload, allocated, fixed, runtime or Runtime())
    return Estimate(terms, low, expected, high, moment)
