"""Figures of the benchmarks that docs name in a sentence: evidence/figures.yaml, which `--record` writes.

An area's figures are what `recorded_figures` of its programs returns, rounded as the docs round them. `SENTENCES` says
which page holds which of them, `TABLES` which page holds a table of the report, between `<!-- NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import records
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = records.EVIDENCE / "figures.yaml"
HEAD = "# Written by `python -m benchmarks AREA --record`; benchmarks/figures.py says which sentences of the docs hold them.\n"
Figures = Mapping[str, float]


class Sentence(NamedTuple):
    """Words of a page, with names of an area's figures in braces."""

    area: str
    page: str
    text: str


SENTENCES = (
    Sentence("time", "README.md", "one NVIDIA node is off by {exact_median:.0f} % in the median and by {exact_p90:.0f} % for nine in ten"),
    Sentence("time", "README.md", "on devices that no constant was fitted to by {other_devices_median:.0f} %"),
    Sentence("time", "README.md", "Of {runs} whole runs that no constant has seen, {runs_in_band} took as long as the band says"),
    Sentence("time", "README.zh.md", "一步的误差中位数为 {exact_median:.0f} %，九成在 {exact_p90:.0f} % 以内"),
    Sentence("time", "README.zh.md", "没有用来拟合任何常数的设备为 {other_devices_median:.0f} %"),
    Sentence("time", "README.zh.md", "{runs} 次没有参与拟合的完整训练中，{runs_in_band} 次的用时落在区间内"),
    Sentence("time", "docs/accuracy.md", "Of {runs} whole runs (`python -m benchmarks time runs`) {runs_in_band} took as long as the band says"),
    Sentence("time", "docs/accuracy.md", "{rows_kept_apart} rows of one NVIDIA node were never used to fit anything"),
    Sentence("simulator", "docs/accuracy.md", "on {grid_cells:,} cells they are off by {grid_median:.2f} % in the median and by {grid_worst:.1f} % at most"),
    Sentence("simulator", "docs/accuracy.md", "on {vision_cells} cells of models that see by {vision_median:.2f} and {vision_worst:.1f} %"),
    Sentence("training", "docs/accuracy.md", "{trained} of {combinations} combinations trained"),
    Sentence("conformity", "docs/accuracy.md", "{agreed:,} of {refused:,} that its parser refuses are errors of ours, {foretold} of {later} that fail later"),
    Sentence("conformity", "docs/accuracy.md", "and {false_alarms} of {ran:,} that train"),
    Sentence("files", "docs/accuracy.md", "| {first_verdicts:.1f} % of {first_that_train} | 90 % |"),
    Sentence("files", "docs/accuracy.md", "| {false_errors} of {recipes}; {missed} of {refused} | under 1 %; 0 |"),
    Sentence("files", "docs/accuracy.md", "and {deepspeed_files} DeepSpeed files went through `check`"),
    Sentence("files", "docs/accuracy.md", "| {deepspeed_agreed} of {deepspeed_tried} ({deepspeed_lacking} more needs a GPU) | all |"),
    Sentence("files", "docs/accuracy.md", "| {too_large} of {stated} ("),
    Sentence("reliability", "docs/reliability.md", "{tried:,} inputs, faults and runs were tried; {failed} failed."),
)  # fmt: skip
TABLES = {
    "memory": (("README.md", "rivals"), ("README.zh.md", "rivals"), ("docs/accuracy.md", "bars"), ("docs/accuracy.md", "rivals")),
    "time": tuple(("docs/accuracy.md", name) for name in ("timebars", "timerivals", "timerows", "claims")),
    "simulator": (("docs/accuracy.md", "releases"),),
    "files": (("docs/accuracy.md", "strangers"),),
    "reliability": (("docs/reliability.md", "reliability"),),
}  # fmt: skip


def recorded() -> dict[str, dict[str, float]]:
    """The figures of every area, by name."""
    found: dict[str, dict[str, float]] = yaml.safe_load(FILE.read_text("utf-8")) if FILE.exists() else {}
    return found


def unsaid(figures: Mapping[str, Figures], area: str = "") -> Iterator[str]:
    """Each sentence that its page does not hold with these figures; of one area, or of all."""
    for sentence in SENTENCES:
        if area in ("", sentence.area):
            text = sentence.text.format_map(figures[sentence.area])
            if text not in " ".join((ROOT / sentence.page).read_text("utf-8").split()):
                yield f"{sentence.page} does not say `{text}`"


def filled(page: str, name: str, report: str) -> str:
    """The page with a table as the report has it now: the paragraph that begins with the same title."""

    def table(match: re.Match[str]) -> str:
        old = match[2].removeprefix("```text\n").removesuffix("```\n")
        if old == match[2]:  # Markdown, the whole of the report
            return match[1] + report + match[3]
        title = old.splitlines()[0]
        now = next(part for part in report.split("\n\n") if title in part.splitlines()[:2])
        return match[1] + "```text\n" + now.strip("\n") + "\n```\n" + match[3]

    return re.sub(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->)", table, page, flags=re.S)


def differences(area: str, computed: Figures, report: str) -> Iterator[str]:
    """Where figures of an area differ from those recorded, its tables from the docs', and its sentences."""
    kept = recorded().get(area, {})
    for name in sorted({*kept, *computed}):
        if kept.get(name) != computed.get(name):
            yield f"{name} is {computed.get(name)}, recorded {kept.get(name)}"
    for page, name in TABLES.get(area, ()):
        text = (ROOT / page).read_text("utf-8")
        if filled(text, name, report) != text:
            yield f"{page}: table `{name}` is another one"
    yield from unsaid({area: computed}, area)


def write(area: str, computed: Figures, report: str) -> None:
    """Put figures of an area in place of those recorded, and its tables into the docs."""
    if computed:
        everything = {**recorded(), area: dict(computed)}
        FILE.write_text(HEAD + yaml.safe_dump(everything, sort_keys=True), "utf-8")
    for page, name in TABLES.get(area, ()):
        path = ROOT / page
        path.write_text(filled(path.read_text("utf-8"), name, report), "utf-8")
