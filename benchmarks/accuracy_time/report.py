"""How far predicted step times are from published ones, and from what else a user would pick on the same rows.

    python -m benchmarks time               # the report; ends with an error where a bar is missed
    python -m benchmarks time report --rows        # every row beside its prediction
    python -m benchmarks time report --holdout  # each source scored by constants that it had no part in: a few minutes

Rows and what they are good for: benchmarks/accuracy_time/times.py. Rows of samples that are shorter than their
maximum by an unknown amount are judged as the product judges a recipe whose samples are not known: a quarter of the
maximum is expected, and the band reaches from a hundred tokens, or a tenth of it, to all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import yaml
from accuracy_time import paced, refit
from accuracy_time.times import TimedRow, published
from score import MISSED, fraction, percent, percentile, scored, signed, table

from validator.physics import StepTime, Workload, estimate_step_time
from validator.run.sample_lengths import assumed_mean_lengths, slowest_batch_length, spread_lengths
from validator.run.training_time import SLOWER_NETWORK

# Devices whose runs shaped the constants of validator/speed; all others are predicted from their published rates alone.
CALIBRATED = ("a100-40g", "a100-80g", "h100-80g")
BANDED = ("short", "offload", "nodes", "ascend")


@dataclass(frozen=True)
class Timed:
    """A row beside its prediction, seconds of a step."""

    row: TimedRow
    step: StepTime

    @property
    def error(self) -> float:
        """Relative error, positive where the prediction is high."""
        return self.step.expected / self.row.seconds - 1

    @property
    def covered(self) -> bool:
        return self.step.low <= self.row.seconds <= self.step.high

    @property
    def width(self) -> float:
        """Half of the band, relative to its centre."""
        return (self.step.high - self.step.low) / (self.step.high + self.step.low)

    @property
    def exact(self) -> bool:
        """Whether the row is of the bars: its tokens are known, and so is all that it ran with."""
        return self.row.kind == "exact" and not self.row.doubt


def judge(row: TimedRow) -> Timed:
    """The model's answer to one row."""
    whole = estimate_step_time(row.architecture, row.workload, row.device)
    if row.guessed:
        slower = row.device._replace(network=SLOWER_NETWORK * row.device.network)
        whole = whole._replace(high=estimate_step_time(row.architecture, row.workload, slower).high)
    if not row.short:
        return Timed(row, whole)
    longest = row.workload.length
    shorter = (shortened(row.workload, mean / longest) for mean in assumed_mean_lengths(longest))
    short, usual = (estimate_step_time(row.architecture, work, row.device) for work in shorter)
    return Timed(row, usual._replace(low=short.low, high=whole.high))


def shortened(work: Workload, share: float) -> Workload:
    """Samples of a mean that is this share of the maximum, padded to the longest of those that wait for each other."""
    lengths = spread_lengths(share * work.length, work.length, told=False)
    return work._replace(
        length=round(slowest_batch_length(lengths, work.micro_batch, work.sharding.world_size, work.accumulation))
    )


def figures(items: Sequence[Timed]) -> list[object]:
    """Number, median and p90 of the size of the error, bias, share in the band, half width of the band."""
    sizes = [abs(item.error) for item in items]
    return [
        len(items), percent(median(sizes)), percent(percentile(sizes, 0.9)),
        signed(median(item.error for item in items)), percent(fraction(item.covered for item in items)),
        percent(median(item.width for item in items)),
    ]  # fmt: skip


HEADS = ["n", "median |%|", "p90 |%|", "bias %", "in band %", "band +-%"]


def grouped(items: Iterable[Timed], name: Callable[[Timed], str]) -> dict[str, list[Timed]]:
    groups: dict[str, list[Timed]] = {}
    for item in items:
        groups.setdefault(name(item), []).append(item)
    return dict(sorted(groups.items()))


def accuracy(title: str, items: Iterable[Timed], name: Callable[[Timed], str]) -> str:
    """One table, a line for each group."""
    lines = [[group, *figures(each)] for group, each in grouped(items, name).items()]
    return table(title, [title.split(" by ")[-1], *HEADS], lines) if lines else ""


def source_and_device(item: Timed) -> str:
    return f"{item.row.source.split(' (')[0]}, {item.row.name}"


def known(items: Iterable[Timed]) -> list[Timed]:
    """Rows whose tokens are known, and all that they ran with."""
    return [item for item in items if item.row.known]


def reached(items: Sequence[Timed]) -> list[tuple[str, float, float, bool]]:
    """Each figure that has a bar: its name, value and bar, and whether it must be above."""
    exact = [item for item in items if item.exact]
    sizes = [abs(item.error) for item in exact if item.row.name in CALIBRATED]
    others = [
        abs(item.error) for item in items if item.row.name not in CALIBRATED and item.row.kind in ("exact", "mean")
    ]
    banded = [item for item in items if item.row.kind in BANDED]
    held = [abs(item.error) for item in known(items) if item.row.held]
    found = [
        ("packed or of fixed length, one NVIDIA node: median", median(sizes), 0.10, False),
        ("packed or of fixed length, one NVIDIA node: p90", percentile(sizes, 0.9), 0.25, False),
        ("devices not used for calibration: median", median(others), 0.20, False),
        ("short, offload, nodes, Ascend: in the band", fraction(item.covered for item in banded), 0.90, True),
    ]
    if held:
        found.append(("rows kept apart, nearly all of such devices: median", median(held), 0.20, False))
    return found


def bars(items: Sequence[Timed]) -> str:
    """What the time model is to reach, and what it reached."""
    lines = [
        [name, percent(value), percent(bar), "met" if (value >= bar if above else value <= bar) else MISSED]
        for name, value, bar, above in reached(items)
    ]
    return table("bars", ["on", "%", "bar %", ""], lines)


def rivals(items: Sequence[Timed]) -> str:
    """Ours and theirs on the same rows, those whose tokens are known."""
    lines = []
    for name, answers in paced.answers(item.row for item in known(items)).items():
        same = [item for item in known(items) if item.row.id in answers]
        theirs = [abs(answers[item.row.id] / item.row.seconds - 1) for item in same]
        ours = [abs(item.error) for item in same]
        sizes = [each for errors in (theirs, ours) for each in (median(errors), percentile(errors, 0.9))]
        lines.append([name, len(same), *map(percent, sizes)])
    return table("what else users would pick", ["rival", "n", "median |%|", "p90", "ours: median |%|", "p90"], lines)


def every_row(items: Iterable[Timed]) -> str:
    """All rows, the worst first in each source."""
    ordered = sorted(items, key=lambda item: (item.row.source, -abs(item.error)))
    lines = [
        [item.row.id, item.row.name, item.row.kind, f"{item.row.seconds:.4g}", f"{item.step.low:.4g}",
         f"{item.step.expected:.4g}", f"{item.step.high:.4g}", signed(item.error), item.step.bottleneck]
        for item in ordered
    ]  # fmt: skip
    return table(
        "rows", ["row", "device", "kind", "seconds", "low", "expected", "high", "error %", "most of it"], lines
    )


def report(source: str = "", rows_too: bool = False) -> str:
    """The whole report as text."""
    found, skipped = published()
    items = [judge(row) for row in found if row.kind != "foreign" and source in row.source]
    parts = [
        f"{len(found)} of {len(found) + skipped.total()} timed rows usable, {len(items)} of them as LLaMA-Factory runs"
    ]
    for kind, title in (
        ("exact", "packed or of fixed length, by source and device"),
        ("mean", "of varied length whose mean is known, by source and device"),
    ):
        parts.append(accuracy(title, [item for item in items if item.row.kind == kind], source_and_device))
    parts.append(
        accuracy(
            "bands of what is uncertain, by kind, source and device",
            [item for item in items if item.row.kind in BANDED],
            lambda item: f"{item.row.kind}: {source_and_device(item)}",
        )
    )
    strange = [item for item in known(items) if item.row.name not in CALIBRATED]
    parts.append(accuracy("devices that shaped no constant, by device", strange, lambda item: item.row.name))
    apart = [item for item in known(items) if item.row.held]
    parts.append(accuracy("kept apart and never fitted to, by source and device", apart, source_and_device))
    if not source:
        parts += [bars(items), rivals(items), table("rows left out", ["reason", "n"], skipped.most_common())]
    return "\n".join([*parts, every_row(items)] if rows_too else parts)


def recorded_figures() -> dict[str, float]:
    """Errors in per cent, the rows that no constant was fitted to, and rows of kinds of which there are few."""
    items = [judge(row) for row in published()[0] if row.kind != "foreign"]
    offload = [item.row for item in items if item.row.kind == "offload"]
    exact_median, exact_p90, other_devices_median = (round(100 * value, 1) for _, value, *_ in reached(items)[:3])
    return {
        "exact_median": exact_median,
        "exact_p90": exact_p90,
        "other_devices_median": other_devices_median,
        "steps_in_band": round(100 * fraction(item.covered for item in items), 1),
        "rows_kept_apart": sum(item.row.held for item in known(items)),
        "ascend_lora_rows": sum(
            item.row.name.startswith("ascend") and item.row.workload.method == "lora" for item in items
        ),
        "offload_rows": len(offload),
        "offload_sources": len({refit.source(row) for row in offload}),
        "holdout_median_bar": refit.MEDIAN_BAR,
        "holdout_p90_bar": refit.P90_BAR,
        **yaml.safe_load(refit.RECORD.read_text("utf-8")),
    }


def main() -> None:
    scored(__doc__, report, lambda: refit.holdout(published()[0]))
