"""Memory of the worst device: the largest of the moments."""

from __future__ import annotations

from . import evidence
from .allocator import Live, Runtime, band
from .estimate import Estimate
from .forward import Terms, resident
from .moments import MOMENTS
from .run import Run, run_of
from .terms import Device, Term
from .workload import Architecture, Workload

# Of these the allocator keeps more than one batch needs; the others have the same size in every step.
PER_BATCH = tuple(term for term in Device if term.grows_with == "batch")


def _live(terms: Terms) -> Live:
    return Live(sum(terms.values()), sum(terms.get(term, 0.0) for term in PER_BATCH))


def live_moments(run: Run) -> dict[str, Live]:
    """Live tensors at every moment of a step. Bytes."""
    return {name: _live(terms_of(run)) for name, terms_of in MOMENTS.items()}


def _with_kernels(arch: Architecture, workload: Workload, runtime: Runtime) -> float:
    """The low end where the kernels of the layers beside attention are installed, though the recipe does not say so."""
    if not arch.mixer or arch.mixer.kernels:
        return float("inf")
    return device_memory(arch._replace(mixer=arch.mixer._replace(kernels=True)), workload, runtime).low


def device_memory(arch: Architecture, workload: Workload, runtime: Runtime | None = None) -> Estimate:
    """Peak of live tensors on the worst device, by term, and what the device's own tool would show. Bytes."""
    run, runtime = run_of(arch, workload), runtime or Runtime()
    moments = {name: terms_of(run) for name, terms_of in MOMENTS.items()}
    lives = {name: _live(terms) for name, terms in moments.items()}
    moment = max(lives, key=lambda name: lives[name].all)
    terms: dict[Term, float] = {term: size for term, size in moments[moment].items() if size}
    fixed = sum(resident(run).values())
    low, expected, high = band(run, lives.values(), fixed, runtime)
    low = min(low, _with_kernels(arch, workload, runtime))
    return Estimate(terms, low, expected, high, moment, evidence.gaps(run, runtime.evidence == "good"))
