"""Do the constants of the time model carry over to sources that did not shape them?

Each source in turn is left out, the constants are fitted to the others from nothing (everything at its published rate,
nothing that takes time of its own), and the source is scored with them. A constant that no other source informs stays
at nothing: the harshest reading. Rates of devices (`attained` of data/devices.yaml) are measured apart from these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import inf
from statistics import median
from types import ModuleType

import yaml
from accuracy_time.times import TimedRow, published
from fitting import assigned, descend, loss, publication
from records import EVIDENCE
from score import percent, percentile, signed, table

from validator.physics import estimate_step_time
from validator.physics.micro_batch import micro_batch_costs

RECORD = EVIDENCE / "time" / "holdout.yaml"
MEDIAN_BAR, P90_BAR = 15, 35  # per cent
# Module and name of each constant -> what it may be, the first value being "no such effect".
CHOICES: Mapping[str, Sequence[object]] = {
    "rates.MATMUL_EFFICIENCY": (1.0, 0.94, 0.88, 0.82, 0.76, 0.7),
    "rates.BANDWIDTH_EFFICIENCY": (1.0, 0.9, 0.8, 0.7, 0.6),
    "compute._FLASH_EFFICIENCY": ((1.0, 1.0), (0.9, 0.8), (0.8, 0.7), (0.7, 0.6), (0.6, 0.5)),
    "compute._MASKED_EFFICIENCY": ((1.0, 1.0), (0.6, 0.45), (0.45, 0.3), (0.3, 0.2)),
    "kernel_launches._LAUNCH_SECONDS": (1e-9, 5e-6, 10e-6, 15e-6, 20e-6),
    "kernel_launches._BACKWARD_LAUNCH_SECONDS": (1e-9, 5e-6, 9e-6, 13e-6),
    "compute._DEQUANTIZATION_RATE": (inf, 2e11, 1e11, 6e10),
    "kernel_launches._HOOK_SECONDS": (0.0, 100e-6, 250e-6, 400e-6),
    "communication._INTERFERENCE_SHARE": (0.0, 0.35, 0.7, 1.0),
}
Constants = dict[str, object]


def module(name: str) -> tuple[ModuleType, str]:
    """The module of validator/physics that holds a constant, and the constant's name there."""
    where, attribute = name.split(".")
    return import_module(f"validator.physics.{where}"), attribute


def forget() -> None:
    """Answers that were computed with other constants."""
    micro_batch_costs.cache_clear()


@contextmanager
def using(values: Constants) -> Iterator[None]:
    """The time model with other constants."""
    with assigned({module(name): value for name, value in values.items()}):
        forget()
        try:
            yield
        finally:
            forget()


def source(row: TimedRow) -> str:
    return publication(row.source)


def errors(rows: Sequence[TimedRow], values: Constants) -> list[float]:
    """Relative errors with these constants."""
    with using(values):
        return [
            estimate_step_time(row.architecture, row.workload, row.device).expected / row.seconds - 1 for row in rows
        ]


def fit(rows: Sequence[TimedRow]) -> Constants:
    names = [source(row) for row in rows]
    return descend(CHOICES, lambda values: loss(zip(names, (1 + error for error in errors(rows, values)), strict=True)))


def left_out(rows: Sequence[TimedRow]) -> Iterator[tuple[str, list[float], list[float]]]:
    """Each source, its relative errors with constants that it had no part in, and with those in use. Held rows are
    never fitted."""
    known = [row for row in rows if row.known]
    for name in dict.fromkeys(map(source, known)):
        kept = [row for row in known if source(row) == name]
        values = fit([row for row in known if source(row) != name and not row.held])
        yield name, errors(kept, values), errors(kept, {})


def middle_and_p90(signed_errors: Sequence[float]) -> tuple[float, float]:
    sizes = list(map(abs, signed_errors))
    return median(sizes), percentile(sizes, 0.9)


def holdout(rows: Sequence[TimedRow]) -> str:
    """A line for each source."""
    lines: list[list[object]] = []
    every: list[float] = []
    for name, fitted, used in left_out(rows):
        every += fitted
        shown = [percent(part) for each in (fitted, used) for part in middle_and_p90(each)]
        lines.append([name, len(fitted), *shown[:2], signed(median(fitted)), *shown[2:]])
    lines.append(["all", len(every), *map(percent, middle_and_p90(every)), "", "", ""])
    heads = ["left out", "n", "median |%|", "p90 |%|", "bias %", "in use: median", "p90"]
    return table(f"constants fitted without the source (bar: {MEDIAN_BAR} / {P90_BAR})", heads, lines)


def main() -> None:
    """Record what the docs say of all sources."""
    every = [error for _, fitted, _ in left_out(published()[0]) for error in fitted]
    names = ("holdout_median", "holdout_p90")
    figures = {name: round(100 * part, 1) for name, part in zip(names, middle_and_p90(every), strict=True)}
    RECORD.write_text(yaml.safe_dump(figures), "utf-8")
