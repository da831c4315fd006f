"""Figures of the benchmarks that docs name in a sentence: evidence/figures.yaml, which `--record` writes.

An area's figures are what `recorded_figures` of its programs returns, rounded. sentences.yaml says which sentence of
which page holds them, `TABLES` which page holds a table of the report, between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import records
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = records.EVIDENCE / "figures.yaml"
SENTENCES: dict[str, dict[str, list[str]]] = yaml.safe_load(
    Path(__file__).with_name("sentences.yaml").read_text("utf-8")
)
HEAD = "# Written by `python -m benchmarks AREA --record`; benchmarks/sentences.yaml says which sentences hold them.\n"
Figures = Mapping[str, float]


TABLES = {
    "memory": (
        ("README.md", "rivals"), ("README.zh.md", "rivals"), ("docs/explanation/accuracy.md", "rivals"),
        ("docs/explanation/accuracy.md", "bars"),
    ),
    "time": tuple(("docs/explanation/accuracy.md", name) for name in ("timebars", "timerivals", "timerows", "claims")),
    "simulator": (("docs/explanation/accuracy.md", "releases"),),
    "files": (("docs/explanation/accuracy.md", "strangers"),),
    "reliability": (("docs/explanation/robustness.md", "reliability"),),
}  # fmt: skip


def recorded() -> dict[str, dict[str, float]]:
    """The figures of every area, by name."""
    found: dict[str, dict[str, float]] = yaml.safe_load(FILE.read_text("utf-8")) if FILE.exists() else {}
    return found


def unsaid(area: str, figures: Figures) -> Iterator[str]:
    """Each sentence with figures of an area that its page does not hold, as it should be."""
    for page, sentences in SENTENCES.get(area, {}).items():
        words = " ".join((ROOT / page).read_text("utf-8").split())
        for sentence in sentences:
            if (text := sentence.format_map(figures)) not in words:
                yield f"{page} does not say `{text}`"


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
    yield from unsaid(area, computed)


def write(area: str, computed: Figures, report: str) -> None:
    """Put figures of an area in place of those recorded, and its tables into the docs."""
    if computed:
        everything = {**recorded(), area: dict(computed)}
        FILE.write_text(HEAD + yaml.safe_dump(everything, sort_keys=True), "utf-8")
    for page, name in TABLES.get(area, ()):
        path = ROOT / page
        path.write_text(filled(path.read_text("utf-8"), name, report), "utf-8")
