"""The systems of five field reports (fields.yaml), and for each the verdict that is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from validator.advise import changes
from validator.check import checking
from validator.finding import FileReport, Severity
from validator.recipe.recipe_file import load_with_overrides
from validator.run.prediction import predict
from validator.run.settings import RunSettings, resolve
from validator.submit import slurm
from validator.submit.cluster_job import RunToSubmit, build_cluster_job
from validator.submit.site_file import Site

pytestmark = pytest.mark.usefixtures("from_the_root")

ROOT = Path(__file__).parents[2]
Row = Mapping[str, Any]
ROWS: list[Row] = yaml.safe_load((ROOT / "tests" / "fixtures" / "fields.yaml").read_text("utf-8"))
REPORTED = {
    f"S{report}{row}" for report, last in zip("01234", "fdecf", strict=True) for row in "abcdef"[: ord(last) - 96]
}


@dataclass(frozen=True)
class Judgement:
    """What the tool says of one row. `text` holds the messages and the nearest changes, `script` the job for SLURM."""

    verdict: str
    codes: frozenset[str]
    text: str
    device_gb: float
    script: Sequence[str]


def judge(row: Row) -> Judgement:
    """Check the row's file as a user would; the working directory is the repository."""
    document = load_with_overrides(row["file"], row.get("set", ()))
    report, described = checking.check_document(document), resolve(document)
    counted = [found for found in report.diagnostics if found.severity is not Severity.NOTE]
    device = predict(described).device_memory
    assert device is not None
    return Judgement(
        verdict=_verdict(report),
        codes=frozenset(found.code for found in counted),
        text="\n".join(
            [*(found.message for found in report.diagnostics), *map(str, changes.nearest_changes(described))]
        ),
        device_gb=device.expected / 1e9,
        script=_script(described) if "job" in row else (),
    )


def _script(described: RunSettings) -> Sequence[str]:
    """The lines of the job that `submit` writes for a site without wishes."""
    run = RunToSubmit(described, (), build_cluster_job(described, Site()))
    return slurm.prepare([run], Site()).text.splitlines()


def _verdict(report: FileReport) -> str:
    if report.count(Severity.ERROR):
        return "refused"
    return "warned" if report.count(Severity.WARNING) else report.verdict


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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['id']}-{Path(row['file']).stem}")
def test_verdict_is_the_right_one(row: Row) -> None:
    assert list(faults(row, judge(row))) == []


def test_every_row_of_the_reports_is_judged() -> None:
    assert {row["id"] for row in ROWS} == REPORTED


def test_every_refused_case_belongs_to_a_row() -> None:
    cases = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "fixtures" / "refused").glob("*.yaml")}
    assert cases == {row["file"] for row in ROWS if row["file"].startswith("tests/")}


def test_a_wrong_verdict_is_seen() -> None:
    wrong = {**ROWS[0], "verdict": "refused", "codes": ["FIT001"], "tells": ["no such words"], "device_gb": [0, 1]}
    assert len(list(faults(wrong, judge(wrong)))) == 4


def test_a_wrong_job_is_seen() -> None:
    row = next(row for row in ROWS if "job" in row)
    wrong = {**row, "job": ["#SBATCH --nodes=1"]}
    assert list(faults(wrong, judge(wrong))) == ["the job lacks `#SBATCH --nodes=1`"]
