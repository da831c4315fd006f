"""Public reports of runs that fitted, ran out of memory, stopped or waited: what check says of each.

    python -m benchmarks reports

evidence/reports/reports.yaml holds what each thread tells, what counts as a right answer, and the answer that was given
before anything was changed for it. The recipes are judged anew; their data are not at hand.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import records
import yaml
from score import GIB, MISSED, table

from validator.check.checking import check_document
from validator.finding import Severity
from validator.physics import Estimate
from validator.recipe.recipe_file import load_recipe
from validator.run.prediction import predict
from validator.run.settings import resolve

RECORD = records.EVIDENCE / "reports" / "reports.yaml"
ZERO_FILES = Path(__file__).parents[2] / "deepspeed"
HEADER = ("machine", "host_ram_gib", "llamafactory", "transformers", "torch")
ROUNDS = (1, 2, 3)
LEAST_RIGHT = 24  # of the thirty of a round
_DATA_SET = "told"  # of a thread whose data set is not told
_SHOWN = 60  # characters of an outcome in the table


class Answer(NamedTuple):
    """What check says of one run: the memory verdict, the device's memory, and errors and warnings with their codes."""

    verdict: str
    device: Estimate | None
    findings: tuple[str, ...]

    def is_right(self, right: Mapping[str, Any]) -> bool:
        """True if the answer meets each condition of `right`, as the head of reports.yaml explains them."""
        if "device" in right:
            low, high = right["device"]
            if self.device is None or not (self.device.low <= high * GIB and low * GIB <= self.device.high):
                return False
        named = any(text in finding for text in right.get("finds", ()) for finding in self.findings)
        return self.verdict in right.get("verdict", [self.verdict]) and (named or "finds" not in right)


class Replayed(NamedTuple):
    """A report beside what check says of each of its runs now."""

    report: Mapping[str, Any]
    answers: tuple[Answer, ...]

    @property
    def round(self) -> int:
        number: int = self.report.get("round", 1)
        return number

    @property
    def is_right(self) -> bool:
        return all(answer.is_right(run["right"]) for run, answer in zip(_runs(self.report), self.answers, strict=True))

    @property
    def is_about_memory(self) -> bool:
        """True if the right answer is a verdict or a number of GiB, not a finding."""
        return not {"verdict", "device"}.isdisjoint(self.report["right"])

    @property
    def out_of_memory_unseen(self) -> bool:
        """True if a run that went out of memory is said to fit."""
        runs = zip(_runs(self.report), self.answers, strict=True)
        return any("out of memory" in run["outcome"] and answer.verdict == "fits" for run, answer in runs)


def _runs(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [report, report["second"]] if "second" in report else [report]


def ask(report: Mapping[str, Any], run: Mapping[str, Any]) -> Answer:
    """Return what check says of a run of a report."""
    told = {**report["header"], **report["recipe"], **run.get("set", {})}
    keys = {key: value for key, value in told.items() if key not in HEADER}
    keys = {"dataset": _DATA_SET, "output_dir": "saves/told", **keys, "dataset_dir": "."}
    if "deepspeed" in keys:
        keys["deepspeed"] = str(ZERO_FILES / keys["deepspeed"])
    header = yaml.safe_dump({key: told[key] for key in HEADER if key in told}, sort_keys=False).splitlines()
    lines = ["# /// recipe", *(f"# {line}" for line in header), "# ///", yaml.safe_dump(keys, sort_keys=False)]
    registry = report.get("registry", {_DATA_SET: {"file_name": f"{_DATA_SET}.json"}})
    with tempfile.TemporaryDirectory() as name, chdir(name):
        for file, content in {"dataset_info.json": registry, **report.get("rows", {})}.items():
            Path(file).write_text(json.dumps(content), "utf-8")
        Path("recipe.yaml").write_text("\n".join(lines), "utf-8")
        document = load_recipe("recipe.yaml")
        checked = check_document(document)
        serious = [each for each in checked.diagnostics if each.severity is not Severity.NOTE]
        findings = tuple(f"{each.code} {each.message}" for each in serious)
        return Answer(checked.verdict, predict(resolve(document)).device_memory, findings)


@cache
def replayed() -> list[Replayed]:
    """Return every report beside what check says of it now."""
    reports = yaml.safe_load(RECORD.read_text("utf-8"))
    return [Replayed(report, tuple(ask(report, run) for run in _runs(report))) for report in reports]


def lines() -> Iterator[str]:
    """Yield the table of the reports, then the counts beside their bars."""
    rows, figures = replayed(), recorded_figures()
    for number in ROUNDS:
        told = (_told(row) for row in rows if row.round == number)
        yield table(f"public reports, round {number}", ("thread", "outcome", "at first", "now"), told)
    bars = [
        (name, figures[key], f">= {LEAST_RIGHT}", "met" if figures[key] >= LEAST_RIGHT else MISSED)
        for number in ROUNDS
        for name, key in (
            (f"round {number}: right at first", f"right_at_first_{number}"),
            (f"round {number}: right now", f"right_now_{number}"),
        )
    ]
    unseen = figures["unseen"]
    bars.append(("out of memory, and said to fit", unseen, "0", MISSED if unseen else "met"))
    yield table("bars", ("", "reports", "bar", ""), bars)


def _told(row: Replayed) -> tuple[str, ...]:
    report = row.report
    return report["thread"], report["outcome"][:_SHOWN], report["first"], "right" if row.is_right else "wrong"


def recorded_figures() -> dict[str, float]:
    """Reports of each round, and how many were answered rightly at first and are now; of all, those that ran out of
    memory and are said to fit."""
    figures: dict[str, float] = {
        "reports": len(replayed()),
        "least_right": LEAST_RIGHT,
        "unseen": sum(row.out_of_memory_unseen for row in replayed()),
    }
    for number in ROUNDS:
        rows = [row for row in replayed() if row.round == number]
        figures[f"reports_{number}"] = len(rows)
        figures[f"right_at_first_{number}"] = sum(row.report["first"] == "right" for row in rows)
        figures[f"right_now_{number}"] = sum(row.is_right for row in rows)
        for part, about_memory in (("memory", True), ("other", False)):
            some = [row for row in rows if row.is_about_memory == about_memory]
            figures[f"{part}_{number}"] = len(some)
            figures[f"{part}_right_{number}"] = sum(row.report["first"] == "right" for row in some)
    return figures


def main() -> None:
    print("\n".join(lines()))
    few = any(recorded_figures()[f"right_now_{number}"] < LEAST_RIGHT for number in ROUNDS)
    sys.exit(few or any(row.out_of_memory_unseen for row in replayed()))
