"""Seconds of one optimizer step: its micro batches and the update."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from validator.memory import Architecture, Workload
from validator.memory.run import run_of

from .device import Device
from .evidence import band, gaps
from .loading import loading
from .offload import offload
from .passes import passes
from .rates import rates
from .terms import Term
from .traffic import traffic
from .update import update


class StepTime(NamedTuple):
    """Seconds of one optimizer step: all micro batches of gradient accumulation, on all devices at once. `terms` sum to
    `expected`; `low` to `high` is the 90 % band; `gaps` say in words what makes it wide; `tokens` are those of the
    step over all devices, padding included."""

    terms: Mapping[Term, float]
    low: float
    expected: float
    high: float
    tokens: int
    gaps: tuple[str, ...] = ()

    @property
    def bottleneck(self) -> Term:
        """The term that takes longest."""
        return max(self.terms, key=lambda term: self.terms[term])


def step_time(architecture: Architecture, workload: Workload, device: Device) -> StepTime:
    """Seconds of one optimizer step of this run on such devices, by what takes them."""
    run = run_of(architecture, workload)
    seconds: defaultdict[Term, float] = defaultdict(float)
    for cost in passes(run, device).costs:
        seconds[cost.term] += workload.accumulation * (cost.forward + cost.backward)
    seconds[Term.OPTIMIZER] += update(run, rates(device))
    seconds[Term.LOADING] += loading(run, device, passes(run, device)) if architecture.towers else 0.0
    for waits in (traffic(run, device, passes(run, device)), offload(run, device)):
        for term, value in waits.items():
            seconds[term] += value
    terms = {term: device.correction * value for term, value in seconds.items() if value}
    expected = sum(terms.values())
    tokens = workload.sharding.world * workload.accumulation * run.tokens
    low, high = band(run, device, terms)
    return StepTime(terms, low, expected, high, tokens, gaps(run, device, terms))
