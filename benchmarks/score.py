"""Rows beside their predictions, and the statistics over them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rows import GIB, Row

from validator.physics import DeviceRuntime, estimate_device_memory, estimate_host_memory

# What a report says of a bar that is missed.
MISSED = "MISSED"


@dataclass(frozen=True)
class Judged:
    """A row beside its prediction, in bytes."""

    row: Row
    allocated: float
    low: float
    expected: float
    high: float

    @property
    def prediction(self) -> float:
        return self.allocated if self.row.metric == "peak_allocated" else self.expected

    @property
    def error(self) -> float:
        """Relative error, positive where the prediction is high."""
        assert self.row.measured is not None
        return self.prediction / self.row.measured - 1

    @property
    def covered(self) -> bool:
        assert self.row.measured is not None
        return self.low <= self.row.measured <= self.high

    @property
    def width(self) -> float:
        """Half of the band, relative to its centre."""
        return (self.high - self.low) / (self.high + self.low)

    @property
    def excess(self) -> float:
        """Expected over what the device can give, relative; only for rows whose device is known."""
        assert self.row.limit is not None
        return self.expected / self.row.limit - 1

    @property
    def verdict(self) -> str:
        return verdict(self.expected, self.high, self.row.limit) if self.row.limit else ""


def judge(row: Row) -> Judged:
    """The model's answer to one row; host rows are answered for one node."""
    if row.kind == "host":
        estimate = estimate_host_memory(row.model, row.workload)
    else:
        capacity = row.limit / GIB if row.limit else None
        runtime = DeviceRuntime(expandable_segments=row.expandable, capacity_gib=capacity)
        estimate = estimate_device_memory(row.model, row.workload, runtime)
    return Judged(row, estimate.allocated, estimate.low, estimate.expected, estimate.high)


def verdict(expected: float, high: float, limit: float) -> str:
    """The validator's rule: fits when `high` is below the limit, tight when only `expected` is."""
    return "fits" if high < limit else "tight" if expected < limit else "exceeds"


def outcome(says: str, answer: str) -> str:
    """Whether a verdict agrees with a public outcome, "runs" or "fails"."""
    if says == "runs":
        return "wrong" if answer == "exceeds" else "right"
    return {"fits": "wrong", "tight": "right (tight)", "exceeds": "right"}[answer]


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def fraction(flags: Iterable[bool]) -> float:
    """Share of true values."""
    known = list(flags)
    return sum(known) / len(known)


def groups(rows: Iterable[Judged]) -> dict[str, list[Judged]]:
    """Rows by source and method, in the order of their first appearance."""
    found: dict[str, list[Judged]] = {}
    for item in rows:
        found.setdefault(f"{item.row.source}: {item.row.method}", []).append(item)
    return found


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Plain text, first column left, the others right."""
    cells = [[str(cell) for cell in line] for line in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["", title, "-" * len(title)]
    for first, *rest in cells:
        lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))
    return "\n".join(lines)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def signed(value: float) -> str:
    return f"{100 * value:+.1f}"


def scored(about: str | None, report: Callable[[str, bool], str], holdout: Callable[[], str]) -> None:
    """The program of a benchmark: its report, of all sources or some, or the score of each source by constants fitted
    to the others. Exit code 1 where a bar is missed, as the report says."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="", help="only sources whose name contains this")
    parser.add_argument("--rows", action="store_true", help="also print every row")
    parser.add_argument("--holdout", action="store_true", help="fit without each source in turn, and score it")
    options = parser.parse_args()
    text = holdout() if options.holdout else report(options.source, options.rows)
    print(text)
    sys.exit(1 if not options.holdout and MISSED in text else 0)
