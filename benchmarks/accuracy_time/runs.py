"""Hours of whole runs as published, beside what we say of recipes that stand for them.

    python -m benchmarks time runs

The runs are evidence/time/runs.yaml: none had a part in making the predictions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from rows import EVIDENCE
from score import fraction, percent, signed, table

from validator.physics import Band
from validator.recipe.recipe_file import Document
from validator.run.settings import RunSettings, resolve
from validator.run.training_time import predict_training_time

ROOT = Path(__file__).resolve().parents[2]
USUAL = {"stage": "sft", "do_train": True, "template": "default", "bf16": True, "logging_steps": 10}
Run = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """A run beside its prediction, in hours. Of a published range the end that is nearer is what counts."""

    run: Run
    ours: Band

    @property
    def theirs(self) -> tuple[float, float]:
        """Lowest and highest hours as published."""
        hours = self.run["hours"]
        return (hours[0], hours[-1]) if isinstance(hours, list) else (hours, hours)

    @property
    def error(self) -> float:
        """Relative error of the expected hours, positive where the prediction is high."""
        low, high = self.theirs
        return self.ours.expected / min(max(self.ours.expected, low), high) - 1

    @property
    def covered(self) -> bool:
        low, high = self.theirs
        return self.ours.low <= high and low <= self.ours.high


def runs() -> list[Run]:
    loaded: list[Run] = yaml.load((EVIDENCE / "time" / "runs.yaml").read_text("utf-8"), yaml.CSafeLoader)
    return loaded


def described(run: Run) -> RunSettings:
    """The recipe that stands for a run."""
    known = {name: run[name] for name in ("machine", "samples", "lengths", "network") if name in run}
    return resolve(Document(f"{run['id']}.yaml", values={**USUAL, **run["set"]}, header=known))


def judge(run: Run) -> Judged:
    """Our answer to a run."""
    answer = predict_training_time(described(run))
    assert answer is not None
    assert answer.hours is not None
    return Judged(run, answer.hours)


def line(item: Judged) -> list[object]:
    low, high = item.theirs
    theirs = f"{low:.3g}" if low == high else f"{low:g} to {high:g}"
    keys = item.run["set"]
    method = f"{keys['quantization_bit']}-bit lora" if "quantization_bit" in keys else keys["finetuning_type"]
    return [
        item.run["id"], item.run["machine"], method, theirs, f"{item.ours.low:.3g}", f"{item.ours.expected:.3g}",
        f"{item.ours.high:.3g}", signed(item.error), "yes" if item.covered else "no",
    ]  # fmt: skip


def figures(name: str, items: Sequence[Judged]) -> list[object]:
    """Number, median size of the error, bias, share in the band."""
    errors = [item.error for item in items]
    share = percent(fraction(item.covered for item in items))
    return [name, len(items), percent(median(map(abs, errors))), signed(median(errors)), share]


def report() -> str:
    items = [judge(run) for run in runs()]
    heads = ["run", "machine", "method", "published, h", "low", "expected", "high", "error %", "in band"]
    groups = {
        "all": items,
        "lengths known": [item for item in items if "lengths" in item.run],
        "nothing in doubt": [item for item in items if "lengths" in item.run and "doubt" not in item.run],
    }
    summary = [figures(name, group) for name, group in groups.items()]
    return "\n".join(
        [
            table("whole runs, none used to make the predictions", heads, [line(item) for item in items]),
            table("of whole runs", ["", "n", "median |%|", "bias %", "in band %"], summary),
        ]
    )


def recorded_figures() -> dict[str, float]:
    """Whole runs, those whose published hours lie in the band, and the errors of all in per cent."""
    items = [judge(run) for run in runs()]
    errors = [100 * item.error for item in items]
    return {
        "runs": len(items),
        "runs_in_band": sum(item.covered for item in items),
        "runs_median": round(median(map(abs, errors)), 1),
        "runs_bias": round(median(errors), 1),
    }


def main() -> None:
    os.chdir(ROOT)
    print(report())
