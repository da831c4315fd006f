"""The systems of five field reports: what each report says, the verdict given here, and whether it is the right one.

    python benchmarks/fields.py

Exit code 1 when a verdict is wrong. The rows are tests/fields.yaml.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from validator.advise import changes
from validator.diagnostic import FileReport, Severity
from validator.job import job
from validator.job.job import GIB, Job
from validator.judge import check
from validator.read.override import overridden
from validator.submit import slurm
from validator.submit.order import Run
from validator.submit.site import Site
from validator.submit.work import work

ROOT = Path(__file__).resolve().parent.parent
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """What the tool says of one row. `text` holds the messages and the nearest changes, `script` the job for SLURM."""

    verdict: str
    codes: frozenset[str]
    text: str
    device_gb: float
    summary: str
    script: Sequence[str]


def rows() -> list[Row]:
    loaded: list[Row] = yaml.load((ROOT / "tests" / "fields.yaml").read_text("utf-8"), yaml.CSafeLoader)
    return loaded


def judge(row: Row) -> Judgement:
    """Check the row's file as a user would; the working directory is the repository."""
    document = overridden(row["file"], row.get("set", ()))
    report, described = check.check_document(document), job.resolve(document)
    counted = [found for found in report.diagnostics if found.severity is not Severity.NOTE]
    device, host = described.device_memory, described.host_memory
    assert device is not None
    assert host is not None
    return Judgement(
        verdict=_verdict(report),
        codes=frozenset(found.code for found in counted),
        text="\n".join([*(found.message for found in report.diagnostics), *map(str, changes.nearest(described))]),
        device_gb=device.expected / 1e9,
        summary=f"{device.expected / GIB:.0f} GiB a card, {host.expected / GIB:.0f} a node{_codes(counted)}",
        script=_script(described) if "job" in row else (),
    )


def _script(described: Job) -> Sequence[str]:
    """The lines of the job that `submit` writes for a site without wishes."""
    run = Run(described, (), work(described, Site()))
    return slurm.order([run], Site()).text.splitlines()


def _verdict(report: FileReport) -> str:
    if report.count(Severity.ERROR):
        return "refused"
    return "warned" if report.count(Severity.WARNING) else report.verdict


def _codes(found: list[Any]) -> str:
    codes = sorted({diagnostic.code for diagnostic in found})
    return f"; {' '.join(codes)}" if codes else ""


def faults(row: Row, found: Judgement) -> Iterator[str]:
    """In what the judgement differs from the right one; nothing where it is right."""
    if found.verdict != row["verdict"]:
        yield f"verdict {found.verdict}, not {row['verdict']}"
    if found.codes != set(row.get("codes", ())):
        yield f"codes {sorted(found.codes)}, not {sorted(row.get('codes', ()))}"
    for part in row.get("tells", ()):
        if part not in found.text:
            yield f"does not tell `{part}`"
    for line in row.get("job", ()):
        if line not in found.script:
            yield f"the job lacks `{line}`"
    low, high = row.get("device_gb", (0, float("inf")))
    if not low <= found.device_gb <= high:
        yield f"{found.device_gb:.1f} GB a card, not {low} to {high}"


def main() -> int:
    os.chdir(ROOT)
    wrong = 0
    print(f"{'row':4} {'the report says':68} {'ours':8} {'':42} right?")
    for row in rows():
        found = judge(row)
        bad = "; ".join(faults(row, found))
        wrong += bool(bad)
        print(f"{row['id']:4} {row['says']:68} {found.verdict:8} {found.summary:42} {bad or 'right'}")
    print(f"{len(rows()) - wrong} of {len(rows())} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
