"""Memory of the worst device: the largest of the moments."""

from __future__ import annotations

from . import evidence
from .allocator import Live, Runtime, band
from .estimate import Estimate
from .forward import Terms
from .moments import MOMENTS
from .states import resident
from .workload import Architecture, Workload

# Terms that grow with the tokens of a batch; the others have the same size in every step.
PER_BATCH = ("activations", "checkpoints", "head", "hidden_states", "logits", "mask", "results")


def _live(terms: Terms) -> Live:
    return Live(sum(terms.values()), sum(terms.get(name, 0.0) for name in PER_BATCH))


def live_moments(arch: Architecture, workload: Workload) -> dict[str, Live]:
    """Live tensors at every moment of a step. Bytes."""
    return {name: _live(make(arch, workload)) for name, make in MOMENTS.items()}


def device_memory(arch: Architecture, workload: Workload, runtime: Runtime | None = None) -> Estimate:
    """Peak of live tensors on the worst device, by term, and what the device's own tool would show. Bytes."""
    moments = {name: make(arch, workload) for name, make in MOMENTS.items()}
    lives = {name: _live(terms) for name, terms in moments.items()}
    moment = max(lives, key=lambda name: lives[name].all)
    terms = {name: value for name, value in moments[moment].items() if value}
    fixed = sum(resident(arch, workload).values())
    runtime = runtime or Runtime()
    low, expected, high = band(arch, workload, lives.values(), fixed, runtime)
    found = evidence.gaps(arch, workload, runtime.evidence == "good")
    return Estimate(terms, low, expected, high, moment, found)
