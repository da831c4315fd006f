"""Do the allocator's coefficients carry over to sources that did not shape them?

Each source in turn is left out, the coefficients are fitted to the others from nothing, and the source is scored with
them. A coefficient that no other source informs stays at nothing: the harshest reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from fitting import assigned, descend, loss, publication
from rows import GIB
from score import Judged, fraction, percent, percentile, signed, table

from validator.physics import DeviceRuntime, device_memory
from validator.physics.device_memory import LiveBytes, device_memory_band, live_bytes_by_phase
from validator.physics.peaks import resident_terms
from validator.physics.training_step import TrainingStep, training_step

# What each coefficient may be, the first value being "no such effect".
CHOICES: Mapping[str, Sequence[float]] = {
    "CACHE_FACTOR": (1.0, 1.5, 2.0, 2.5, 3.0, 3.5),
    "CACHE_FACTOR_FULL": (1.0, 1.2, 1.4, 1.7, 2.0),
    "FRAGMENTS_EQUAL": (0.0, 0.05, 0.1, 0.15, 0.2),
    "SECOND_STREAM_FRAGMENTS": (0.0, 0.05, 0.1, 0.15, 0.2),
    "LEFTOVER_SHIFTED": (0.0, 2.0, 4.0, 6.0),
    "FSDP_PER_TRAINED": (0.0, 0.6, 1.2, 1.8),
    "COMMUNICATION_BYTES": (0.0, 0.75 * GIB, 1.5 * GIB, 2.25 * GIB),
}
Coefficients = dict[str, float]
Prepared = tuple[Judged, TrainingStep, tuple[LiveBytes, ...], float, DeviceRuntime]


def source(item: Judged) -> str:
    return publication(item.row.source)


def prepare(rows: Sequence[Judged]) -> list[Prepared]:
    """Rows of known length whose figure includes the allocator's slack, with all that does not depend on it."""
    prepared: list[Prepared] = []
    for item in rows:
        row = item.row
        if row.kind == "exact" and row.peer and row.metric != "peak_allocated":
            runtime = DeviceRuntime(
                expandable_segments=row.expandable, capacity_gib=row.limit / GIB if row.limit else None
            )
            run = training_step(row.model, row.workload)
            fixed = sum(resident_terms(run).values())
            prepared.append((item, run, tuple(live_bytes_by_phase(run).values()), fixed, runtime))
    return prepared


def bands(rows: Sequence[Prepared], values: Coefficients) -> list[tuple[Judged, tuple[float, float, float]]]:
    """The allocator's answers with other coefficients."""
    with assigned({(device_memory, name): value for name, value in values.items()}):
        return [(item, device_memory_band(run, lives, fixed, runtime)) for item, run, lives, fixed, runtime in rows]


def error(rows: Sequence[Prepared], values: Coefficients) -> float:
    """The loss with these coefficients."""
    judged = bands(rows, values)
    return loss((source(item), expected / (item.row.measured or expected)) for item, (_, expected, _) in judged)


def fit(rows: Sequence[Prepared]) -> Coefficients:
    return descend(CHOICES, lambda values: error(rows, values))


def holdout(rows: Sequence[Judged]) -> str:
    """Every source scored with coefficients that it had no part in, beside the ones in use."""
    prepared, lines = prepare(rows), []
    for name in dict.fromkeys(source(item) for item, *_ in prepared):
        kept = [entry for entry in prepared if source(entry[0]) == name]
        values = fit([entry for entry in prepared if source(entry[0]) != name])
        scored = bands(kept, values)
        measured = [item.row.measured or 0.0 for item, _ in scored]
        errors = [expected / size - 1 for size, (_, (_, expected, _)) in zip(measured, scored, strict=True)]
        inside = [low <= size <= high for size, (_, (low, _, high)) in zip(measured, scored, strict=True)]
        sizes, used = [abs(error) for error in errors], [abs(item.error) for item, _ in scored]
        figures = [median(sizes), percentile(sizes, 0.9), fraction(inside), median(used), percentile(used, 0.9)]
        lines.append([name, len(kept), *map(percent, figures[:2]), signed(median(errors)), *map(percent, figures[2:])])
    heads = ["left out", "n", "median |%|", "p90 |%|", "bias %", "in band %", "in use: median", "p90"]
    return table("coefficients fitted without the source", heads, lines)
