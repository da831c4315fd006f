"""How far the memory model is from published measurements, beside what a user would pick instead.

`python -m benchmarks.memory` prints the report; `--rows` adds every row, `--source TEXT` keeps the sources whose name
contains TEXT. Rows and their provenance: evidence/README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import yaml

from benchmarks.rivals import answers
from benchmarks.rows import EVIDENCE, GIB, Row, measured_here, published, verdicts
from validator.memory import Runtime, device_memory, host_memory

SHOWN = ("nvidia-smi", "peak_reserved", "unknown")
DEVICES = EVIDENCE.parents[1] / "validator" / "data" / "devices.yaml"


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


def judge(row: Row) -> Judged:
    """The model's answer to one row; host rows are answered for one node."""
    if row.kind == "host":
        estimate = host_memory(row.model, row.workload)
    else:
        estimate = device_memory(row.model, row.workload, Runtime(expandable_segments=row.expandable))
    return Judged(row, estimate.allocated, estimate.low, estimate.expected, estimate.high)


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def usable() -> dict[str, float]:
    """Bytes that all processes together can allocate, by device name."""
    devices = yaml.safe_load(DEVICES.read_text(encoding="utf-8"))
    return {name: entry["usable_gib"] * GIB for name, entry in devices.items() if entry["usable_gib"]}


def verdict(low: float, high: float, limit: float) -> str:
    """design.md: fits when high is below the limit, tight when only the expected value is."""
    return "fits" if high < limit else "tight" if low < limit else "exceeds"


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Plain text, first column left, the others right."""
    cells = [[str(cell) for cell in line] for line in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]) for line in cells]
    return "\n".join(["", title, "-" * len(title), *lines])


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def grouped(rows: Iterable[Judged]) -> dict[tuple[str, str], list[Judged]]:
    groups: dict[tuple[str, str], list[Judged]] = {}
    for item in rows:
        groups.setdefault((item.row.source, item.row.method), []).append(item)
    return groups


def accuracy_line(name: str, rows: Sequence[Judged]) -> list[object]:
    errors = [item.error for item in rows]
    sizes = [abs(error) for error in errors]
    line: list[object] = [name, len(rows), percent(median(sizes)), percent(percentile(sizes, 0.9)), f"{100 * median(errors):+.1f}"]
    if rows[0].row.metric != "peak_allocated":
        covered = sum(item.covered for item in rows) / len(rows)
        line += [percent(covered), percent(median(item.width for item in rows))]
    return line


def accuracy(rows: Sequence[Judged], metrics: Sequence[str], title: str) -> str:
    kept = [item for item in rows if item.row.kind == "exact" and item.row.metric in metrics]
    lines = [accuracy_line(f"{source}: {method}", group) for (source, method), group in grouped(kept).items()]
    for name, peer in (("all with LLaMA-Factory's software", True), ("all others", False)):
        if chosen := [item for item in kept if item.row.peer is peer]:
            lines.append(accuracy_line(name, chosen))
    heads = ["source: method", "n", "median |%|", "p90 |%|", "bias %"]
    return table(title, heads + (["in band %", "+-band %"] if metrics is SHOWN else []), lines)


def one_sided(rows: Sequence[Judged]) -> str:
    """Samples shorter than the cutoff: a prediction at the cutoff must not be below what was measured."""
    lines = []
    for (source, method), group in grouped(item for item in rows if item.row.kind == "bound").items():
        above = sum(item.error >= -0.05 for item in group) / len(group)
        lines.append([f"{source}: {method}", len(group), percent(above), f"{100 * min(i.error for i in group):+.1f}"])
    return table("short samples, predicted at the cutoff (one-sided)", ["source: method", "n", "not below %", "lowest %"], lines)


def confusion(rows: Sequence[Judged]) -> str:
    """Verdicts on the card a row names: runs that ran out of memory, and runs that ran."""
    limits, lines = usable(), []
    for title, chosen in (
        ("ran out of memory", [item for item in rows if item.row.kind == "oom"]),
        ("ran", [item for item in rows if item.row.kind == "exact" and item.row.metric != "peak_allocated"]),
    ):
        known = [item for item in chosen if item.row.card in limits]
        counts = [verdict(i.expected, i.high, limits[str(i.row.card)]) for i in known]
        over = max((i.expected / limits[str(i.row.card)] - 1 for i in known), default=0.0) if title == "ran" else None
        lines.append([title, len(known), *(counts.count(v) for v in ("fits", "tight", "exceeds")), "" if over is None else f"{100 * over:+.1f}"])
    return table("verdicts on the card of the row", ["outcome", "n", "fits", "tight", "exceeds", "worst over card %"], lines)


def rivals(rows: Sequence[Judged]) -> str:
    """Every rival on the exact rows it answers, and this model on the same rows, whatever metric the row has."""
    exact = {item.row.id: item for item in rows if item.row.kind == "exact"}
    oom = [item for item in rows if item.row.kind == "oom" and item.row.card]
    limits, lines = usable(), []
    for name, guesses in answers([item.row for item in rows]).items():
        shared = [(item, guesses[key]) for key, item in exact.items() if key in guesses]
        theirs = [guess / item.row.measured - 1 for item, guess in shared if item.row.measured]
        ours = [abs(item.error) for item, _ in shared]
        answered = [item for item in oom if item.row.id in guesses]
        caught = sum(guesses[item.row.id] > limits[str(item.row.card)] for item in answered)
        caught_here = sum(item.expected > limits[str(item.row.card)] for item in answered)
        lines.append(
            [name, len(shared), percent(median(map(abs, theirs))), percent(percentile(map(abs, theirs), 0.9)),
             percent(sum(e < -0.1 for e in theirs) / len(theirs)), percent(median(ours)), percent(percentile(ours, 0.9)),
             f"{caught}/{len(answered)}", f"{caught_here}/{len(answered)}"]
        )  # fmt: skip
    heads = ["rival", "n", "median |%|", "p90 |%|", ">10 % low %", "ours median", "ours p90", "OOM caught", "ours caught"]
    return table("rivals on the rows they can answer", heads, lines)


def host(rows: Sequence[Judged]) -> str:
    lines = [
        [item.row.id, item.row.source, f"{item.row.measured / GIB:.1f}", f"{item.low / GIB:.1f}", f"{item.expected / GIB:.1f}", f"{item.high / GIB:.1f}", f"{100 * item.error:+.0f}"]
        for item in rows
        if item.row.kind == "host" and item.row.measured
    ]  # fmt: skip
    return table("host memory, GiB", ["row", "source", "measured", "low", "expected", "high", "error %"], lines)


def outcome(says: str, answer: str) -> str:
    if says == "runs":
        return "wrong" if answer == "exceeds" else "right"
    return {"fits": "wrong", "tight": "right (tight)", "exceeds": "right"}[answer]


def public_verdicts() -> str:
    """Each public outcome as right or wrong, device and host apart."""
    limits, lines = usable(), []
    for facts, model, work in verdicts():
        device, ram = device_memory(model, work), host_memory(model, work)
        for side, estimate, limit in (
            ("device", device, limits[facts["device"]]),
            ("host", ram, float(facts["host_ram_gib"] or 0) * GIB),
        ):
            says, size = facts[f"{side}_says"], facts[f"{side}_gib"]
            if not says and not size:
                continue
            answer = verdict(estimate.expected, estimate.high, limit) if limit else ""
            error = f"{100 * (estimate.expected / GIB / float(size) - 1):+.0f}" if size else ""
            lines.append([facts["id"], side, says, answer, outcome(says, answer) if says else "", f"{estimate.expected / GIB:.1f}", f"{limit / GIB:.1f}" if limit else "", size, error])  # fmt: skip
    judged = [line[4] for line in lines if line[4]]
    title = f"public outcomes: {sum(str(j).startswith('right') for j in judged)} of {len(judged)} right"
    return table(title, ["case", "side", "public", "verdict", "", "expected GiB", "limit", "reported", "error %"], lines)




def bars(rows: Sequence[Judged]) -> str:
    """What this project holds itself to, over sources that run LLaMA-Factory's software."""
    exact = [item for item in rows if item.row.kind == "exact" and item.row.peer]
    allocated = [abs(item.error) for item in exact if item.row.metric == "peak_allocated"]
    shown = [item for item in exact if item.row.metric in ("nvidia-smi", "peak_reserved")]
    limits = usable()
    oom = [verdict(i.expected, i.high, limits[str(i.row.card)]) for i in rows if i.row.kind == "oom" and i.row.card]
    ran = [i.expected / limits[str(i.row.card)] - 1 for i in exact if i.row.card and i.row.metric != "peak_allocated"]
    checks = [
        ("allocated, median error", median(allocated), 0.04, "<="),
        ("allocated, p90 error", percentile(allocated, 0.9), 0.10, "<="),
        ("nvidia-smi and reserved, median error", median(abs(i.error) for i in shown), 0.08, "<="),
        ("nvidia-smi and reserved, in the 90 % band", sum(i.covered for i in shown) / len(shown), 0.90, ">="),
        ("half width of the band on the median row", median(i.width for i in shown), 0.20, "<="),
        ("out of memory called fits", oom.count("fits") / len(oom), 0.0, "<="),
        ("out of memory called exceeds", oom.count("exceeds") / len(oom), 0.80, ">="),
        ("ran, worst excess over the card", max(ran), 0.05, "<="),
        ("ran, not called exceeds", sum(r < 0 for r in ran) / len(ran), 0.90, ">="),
    ]
    lines = [
        [name, percent(value), f"{sign} {percent(bar)}", "met" if (value <= bar if sign == "<=" else value >= bar) else "MISSED"]
        for name, value, bar, sign in checks
    ]
    return table("bars, %", ["", "value", "bar", ""], lines)


def every_row(rows: Sequence[Judged]) -> str:
    lines = [
        [item.row.id, item.row.source, item.row.method, item.row.kind, item.row.metric, f"{item.row.measured / GIB:.2f}", f"{item.prediction / GIB:.2f}", f"{100 * item.error:+.1f}"]
        for item in rows
        if item.row.measured
    ]  # fmt: skip
    return table("rows", ["row", "source", "method", "kind", "metric", "measured", "predicted", "error %"], lines)


def report(source: str = "", rows_too: bool = False) -> str:
    """The whole report as text."""
    usable_rows, skipped = published()
    rows = [judge(row) for row in [*usable_rows, *measured_here()] if source in row.source]
    parts = [
        f"{len(usable_rows)} of {len(usable_rows) + skipped.total()} published rows usable",
        table("rows left out", ["reason", "n"], skipped.most_common()),
        accuracy(rows, ("peak_allocated",), "peak of live tensors, rows of known length"),
        accuracy(rows, SHOWN, "nvidia-smi, reserved or unstated metric, rows of known length"),
        one_sided(rows),
        confusion(rows),
        rivals(rows),
        host(rows),
        public_verdicts(),
    ]
    if rows_too:
        parts.append(every_row(rows))
    return "\n".join([*parts, *([] if source else [bars(rows)])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="", help="only sources whose name contains this")
    parser.add_argument("--rows", action="store_true", help="also print every row")
    options = parser.parse_args()
    print(report(options.source, options.rows))


if __name__ == "__main__":
    main()
