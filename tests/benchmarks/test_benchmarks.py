"""python -m benchmarks: its areas, its path, and the figures that the docs take from it."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain
from pathlib import Path

import figures
import pytest

ROOT = Path(__file__).parents[2]
# Runs the command as `python -m` does, then asks what an area would find.
FOUND = """
import contextlib, importlib.util, runpy, sys
sys.path.insert(0, "")
sys.argv = ["benchmarks"]
with contextlib.suppress(SystemExit):
    runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
for name in ("deepspeed", "accelerate", "data", "recipes"):
    spec = importlib.util.find_spec(name)
    print(name, *(spec.submodule_search_locations or [spec.origin]) if spec else [], sep="\\t", file=sys.stderr)
"""


def asked(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, started as a contributor starts it."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_each_area_is_listed_in_a_line_and_has_its_programs() -> None:
    done = asked()
    assert done.returncode == 0
    listed = {line.split()[0]: line for line in done.stdout.splitlines() if line and not line.startswith("python")}
    assert {"memory", "time", "conformity", "simulator", "training", "files", "reliability", "gpu"} <= listed.keys()


@pytest.mark.parametrize("words", [("memori",), ("memory", "--chekc"), ("memory", "rival")])
def test_what_does_not_exist_is_said_in_one_line(words: tuple[str, ...]) -> None:
    done = asked(*words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words[-1] in done.stderr


def test_without_a_gpu_record_the_check_says_so() -> None:
    done = asked("gpu", "--check")
    assert (done.returncode, "there is no record" in done.stdout) == (0, True)


def test_folders_of_the_repository_are_no_packages() -> None:
    done = subprocess.run([sys.executable, "-c", FOUND], cwd=ROOT, capture_output=True, text=True, check=True)
    places = dict(line.partition("\t")[::2] for line in done.stderr.splitlines())
    assert places.keys() == {"deepspeed", "accelerate", "data", "recipes"}
    for name, where in places.items():
        assert str(ROOT / name) not in where.split("\t"), name


def test_docs_hold_the_recorded_figures() -> None:
    recorded = figures.recorded()
    assert figures.SENTENCES.keys() <= recorded.keys()
    assert [line for area in figures.SENTENCES for line in figures.unsaid(area, recorded[area])] == []


def test_each_recorded_figure_stands_in_a_sentence() -> None:
    texts = {area: " ".join(chain(*pages.values())) for area, pages in figures.SENTENCES.items()}
    recorded = {(area, name) for area, found in figures.recorded().items() for name in found}
    assert [pair for pair in sorted(recorded) if f"{{{pair[1]}" not in texts.get(pair[0], "")] == []


def test_a_difference_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text(
        "Of 22 runs\n14 were right.\n<!-- sizes -->\n```text\nsizes\n-----\n1\n```\n<!-- end -->\n"
    )
    (tmp_path / "figures.yaml").write_text("time: {runs: 22, right: 14}\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "FILE", tmp_path / "figures.yaml")
    monkeypatch.setattr(figures, "SENTENCES", {"time": {"page.md": ["Of {runs} runs {right} were right"]}})
    monkeypatch.setattr(figures, "TABLES", {"time": (("page.md", "sizes"),)})
    old, new = "other\n\nsizes\n-----\n1\n", "other\n\nsizes\n-----\n2\n"
    assert list(figures.differences("time", {"runs": 22, "right": 14}, old)) == []
    assert list(figures.differences("time", {"runs": 22, "right": 15}, new)) == [
        "right is 15, recorded 14", "page.md: table `sizes` is another one",
        "page.md does not say `Of 22 runs 15 were right`",
    ]  # fmt: skip
    figures.write("time", {"runs": 22, "right": 15}, new)
    assert figures.recorded() == {"time": {"runs": 22, "right": 15}}
    assert "\n2\n" in (tmp_path / "page.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("area", ["memory", "time", "simulator", "training", "files", "reliability"])
def test_area_is_as_the_docs_say(area: str) -> None:
    done = asked(area, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
