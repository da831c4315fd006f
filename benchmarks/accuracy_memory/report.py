"""How far the memory model is from measurements, beside what a user would pick instead.

`python -m benchmarks memory` prints the report; `--rows` adds every row, `--source TEXT` keeps the sources whose name
contains TEXT, `--holdout` scores each source with coefficients fitted to the others.
Rows and their provenance: evidence/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from accuracy_memory.holdout import holdout
from accuracy_memory.own_rows import measured_here
from accuracy_memory.rivals import answers
from rows import GIB, published, usable, verdicts
from score import MISSED, Judged, fraction, groups, judge, outcome, percent, percentile, scored, signed, table, verdict

from validator.physics import DeviceRuntime, Estimate, estimate_device_memory, estimate_host_memory

SHOWN = ("nvidia-smi", "peak_reserved", "unknown")


def accuracy_line(name: str, rows: Sequence[Judged]) -> list[object]:
    sizes = [abs(item.error) for item in rows]
    bias = median(item.error for item in rows)
    line: list[object] = [name, len(rows), percent(median(sizes)), percent(percentile(sizes, 0.9)), signed(bias)]
    if rows[0].row.metric == "peak_allocated":
        return line
    return [*line, percent(fraction(item.covered for item in rows)), percent(median(item.width for item in rows))]


def accuracy(rows: Sequence[Judged], metrics: Sequence[str], title: str) -> str:
    """Rows whose token count is known, by source and method."""
    kept = [item for item in rows if item.row.kind == "exact" and item.row.metric in metrics]
    lines = [accuracy_line(name, group) for name, group in groups(kept).items()]
    for name, peer in (("all with LLaMA-Factory's software", True), ("all others", False)):
        if chosen := [item for item in kept if item.row.peer is peer]:
            lines.append(accuracy_line(name, chosen))
    heads = ["source: method", "n", "median |%|", "p90 |%|", "bias %"]
    return table(title, heads + (["in band %", "+-band %"] if metrics is SHOWN else []), lines)


def one_sided(rows: Sequence[Judged]) -> str:
    """Samples shorter than the cutoff: a prediction at the cutoff must not be below what was measured."""
    lines = []
    for name, group in groups(item for item in rows if item.row.kind == "bound").items():
        errors = [item.error for item in group]
        lines.append([name, len(group), percent(fraction(error >= -0.05 for error in errors)), signed(min(errors))])
    heads = ["source: method", "n", "not below %", "lowest %"]
    return table("samples shorter than the cutoff, predicted at the cutoff (one-sided)", heads, lines)


def confusion(rows: Sequence[Judged]) -> str:
    """Verdicts on the device of each row: runs that ran out of memory, and runs that ran."""
    known = [item for item in rows if item.row.limit]
    failed = [item for item in known if item.row.kind == "oom"]
    ran = [item for item in known if item.row.kind == "exact" and item.row.metric != "peak_allocated"]
    lines = []
    for title, chosen in (("ran out of memory", failed), ("ran", ran)):
        said = [item.verdict for item in chosen]
        over = signed(max(item.excess for item in chosen)) if chosen is ran else ""
        lines.append([title, len(said), said.count("fits"), said.count("tight"), said.count("exceeds"), over])
    heads = ["outcome", "n", "fits", "tight", "exceeds", "worst over device %"]
    return table("verdicts on the device of the row", heads, lines)


def rival_line(name: str, guesses: dict[str, float], rows: Sequence[Judged]) -> list[object]:
    answered = [item for item in rows if item.row.id in guesses]
    exact = [item for item in answered if item.row.kind == "exact"]
    theirs = [guesses[item.row.id] / item.row.measured - 1 for item in exact if item.row.measured]
    sizes, ours = [abs(error) for error in theirs], [abs(item.error) for item in exact]
    failed = [(item, item.row.limit) for item in answered if item.row.kind == "oom" and item.row.limit]
    low = percent(fraction(error < -0.1 for error in theirs))
    caught = sum(guesses[item.row.id] > limit for item, limit in failed)
    here = sum(item.verdict == "exceeds" for item, _ in failed)
    figures = [median(sizes), percentile(sizes, 0.9), median(ours), percentile(ours, 0.9)]
    return [name, len(exact), *map(percent, figures), low, f"{caught}/{len(failed)}", f"{here}/{len(failed)}"]


def rivals(rows: Sequence[Judged]) -> str:
    """Every rival on the rows it can answer, and this model on the same rows, whatever metric a row has."""
    published_rows = [item for item in rows if item.row.kind in ("exact", "oom")]
    guesses = answers([item.row for item in published_rows])
    known = {item.row.id for item in published_rows}
    lines = [rival_line(name, found, published_rows) for name, found in guesses.items() if known & found.keys()]
    heads = ["rival", "n", "median |%|", "p90 |%|", "ours median", "ours p90", ">10% low %", "OOM caught", "ours"]
    return table("rivals on the rows they can answer", heads, lines)


def host(rows: Sequence[Judged]) -> str:
    lines = []
    for item in rows:
        if item.row.kind == "host" and item.row.measured:
            sizes = (item.row.measured, item.low, item.expected, item.high)
            lines.append([item.row.id, item.row.source, *(f"{size / GIB:.1f}" for size in sizes), signed(item.error)])
    return table("host memory, GiB", ["row", "source", "measured", "low", "expected", "high", "error %"], lines)


def runtime(facts: Mapping[str, str]) -> DeviceRuntime:
    """As the product sees the device of a public outcome."""
    thin = facts["device"].startswith("ascend")
    return DeviceRuntime(
        evidence="thin" if thin else "good",
        expandable_segments=facts["expandable"] == "yes",
        capacity_gib=usable()[facts["device"]] / GIB,
    )


@dataclass(frozen=True)
class Side:
    """One side, device or host, of a public outcome. `limit` and `size` (reported) are bytes, 0 where unknown."""

    case: str
    side: str
    says: str
    estimate: Estimate
    limit: float
    size: float
    known: bool  # while the formulas were made; the others were collected afterwards

    @property
    def answer(self) -> str:
        return verdict(self.estimate.expected, self.estimate.high, self.limit) if self.limit else ""

    @property
    def right(self) -> str:
        return outcome(self.says, self.answer) if self.says else ""

    @property
    def error(self) -> float:
        return self.estimate.expected / self.size - 1


@cache
def public_sides() -> tuple[Side, ...]:
    """Every public outcome, device and host apart."""
    found = []
    for facts, model, work in verdicts():
        device = estimate_device_memory(model, work, runtime(facts)), usable()[facts["device"]]
        host_limit = float(facts["host_ram_gib"] or 0) * GIB
        for side, (estimate, limit) in (("device", device), ("host", (estimate_host_memory(model, work), host_limit))):
            says, size = facts[f"{side}_says"], float(facts[f"{side}_gib"] or 0) * GIB
            if says or size:
                found.append(Side(facts["id"], side, says, estimate, limit, size, facts["known"] == "yes"))
    return tuple(found)


def case_line(case: Side) -> list[str]:
    limit, size = (f"{value / GIB:.1f}" if value else "" for value in (case.limit, case.size))
    band = [f"{value / GIB:.1f}" for value in (case.estimate.low, case.estimate.expected, case.estimate.high)]
    error = signed(case.error) if case.size else ""
    return [case.case, case.side, case.says, case.answer, case.right, *band, limit, size, error]


def public_outcomes() -> str:
    """Each public outcome as right or wrong."""
    counts = []
    for known in (True, False):
        judged = [case.right for case in public_sides() if case.right and case.known is known]
        counts.append(f"{sum(right.startswith('right') for right in judged)} of {len(judged)}")
    title = f"public outcomes: {counts[0]} right, and {counts[1]} of those collected afterwards"
    heads = ["case", "side", "public", "verdict", "", "low", "expected", "high", "limit", "reported", "error %"]
    return table(title, heads, map(case_line, public_sides()))


def bar_values(rows: Sequence[Judged]) -> list[tuple[str, float, float, str]]:
    """(what, value, bar, sign) over the sources that run LLaMA-Factory's software; out of memory over all sources."""
    exact = [item for item in rows if item.row.kind == "exact" and item.row.peer]
    allocated = [abs(item.error) for item in exact if item.row.metric == "peak_allocated"]
    shown = [item for item in exact if item.row.metric in ("nvidia-smi", "peak_reserved")]
    failed = [item.verdict for item in rows if item.row.kind == "oom" and item.row.limit]
    excess = [item.excess for item in exact if item.row.limit and item.row.metric != "peak_allocated"]
    judged = [[case for case in public_sides() if case.right and case.known is known] for known in (True, False)]
    return [
        ("allocated, median error", median(allocated), 0.04, "<="),
        ("allocated, p90 error", percentile(allocated, 0.9), 0.10, "<="),
        ("nvidia-smi and reserved, median error", median(abs(item.error) for item in shown), 0.08, "<="),
        ("nvidia-smi and reserved, in the 90 % band", fraction(item.covered for item in shown), 0.90, ">="),
        ("half width of the band on the median row", median(item.width for item in shown), 0.20, "<="),
        ("out of memory called fits", fraction(said == "fits" for said in failed), 0.0, "<="),
        ("out of memory called exceeds", fraction(said == "exceeds" for said in failed), 0.80, ">="),
        ("ran, worst excess over the device", max(excess), 0.05, "<="),
        ("ran, not called exceeds", fraction(over < 0 for over in excess), 0.90, ">="),
        *host_bars(rows),
        ("public outcomes on the right side", fraction(case.right != "wrong" for case in judged[0]), 1.0, ">="),
        ("those collected afterwards", fraction(case.right != "wrong" for case in judged[1]), 0.9, ">="),
    ]


def host_bars(rows: Sequence[Judged]) -> list[tuple[str, float, float, str]]:
    """Host rows of both files: how far off the worst is, and on which side of the memory of the node."""
    cases = [case for case in public_sides() if case.side == "host"]
    errors = [abs(item.error) for item in rows if item.row.kind == "host"]
    errors += [abs(case.error) for case in cases if case.size]
    return [
        ("host memory, worst error", max(errors), 0.25, "<="),
        ("host memory, on the right side", fraction(case.right != "wrong" for case in cases if case.says), 1.0, ">="),
    ]


def bars(rows: Sequence[Judged]) -> str:
    """What this project holds itself to."""
    lines = []
    for name, value, bar, sign in bar_values(rows):
        met = value <= bar if sign == "<=" else value >= bar
        lines.append([name, percent(value), f"{sign} {percent(bar)}", "met" if met else MISSED])
    return table("bars, %", ["", "value", "bar", ""], lines)


def every_row(rows: Sequence[Judged]) -> str:
    lines = []
    for item in rows:
        where = [item.row.id, item.row.source, item.row.method, item.row.kind, item.row.metric]
        size = item.row.measured
        seen, error = (f"{size / GIB:.2f}", signed(item.error)) if size else ("out of memory", "")
        lines.append([*where, seen, f"{item.prediction / GIB:.2f}", error, item.verdict])
    heads = ["row", "source", "method", "kind", "metric", "measured GiB", "predicted", "error %", "verdict"]
    return table("rows", heads, lines)


def report(source: str = "", rows_too: bool = False) -> str:
    """The whole report as text; the summary tables only over all sources."""
    found, skipped = published()
    rows = [judge(row) for row in [*found, *measured_here()] if source in row.source]
    parts = [
        f"{len(found)} of {len(found) + skipped.total()} published rows usable",
        accuracy(rows, ("peak_allocated",), "peak of live tensors, rows of known length"),
        accuracy(rows, SHOWN, "nvidia-smi, reserved or unstated metric, rows of known length"),
        one_sided(rows),
    ]
    if not source:
        parts += [confusion(rows), rivals(rows), host(rows), public_outcomes(), bars(rows)]
        parts.append(table("rows left out", ["reason", "n"], skipped.most_common()))
    return "\n".join([*parts, every_row(rows)] if rows_too else parts)


def recorded_figures() -> dict[str, float]:
    """Return the per cent of published device memory that lies in the band."""
    values = {
        name: value for name, value, *_ in bar_values([judge(row) for row in [*published()[0], *measured_here()]])
    }
    return {"memory_in_band": round(100 * values["nvidia-smi and reserved, in the 90 % band"], 1)}


def main() -> None:
    scored(__doc__, report, lambda: holdout([judge(row) for row in [*published()[0], *measured_here()]]))
