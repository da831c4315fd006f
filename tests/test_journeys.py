"""From nothing to a run: every page of docs/journeys/ still prints what it says, and the real parser takes its runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import cluster, journeys
from support.journeys import Journey
from support.real_parser import Parser

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.process]


def queues(page: Path) -> bool:
    """Whether the page submits jobs."""
    return "<!-- on slurm -->" in page.read_text("utf-8")


def trains(page: Path) -> bool:
    """Whether the page ends in a real fine-tune."""
    return queues(page) or bool(re.search(r"(?m)^\$ lmf-recipes train (?!.*--dry-run)", page.read_text("utf-8")))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return journeys.installation(tmp_path_factory.mktemp("installation"))


WALKED: dict[Path, Journey] = {}


def walked(page: Path, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Journey:
    if page not in WALKED:
        WALKED[page] = journeys.replay(page, programs, tmp_path_factory.mktemp(page.stem))
    return WALKED[page]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[pytest.mark.training] if trains(page) else []) for page in journeys.PAGES],
)
def test_a_journey_goes_as_it_is_told(
    page: Path, programs: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> None:
    if queues(page) and cluster.missing():
        pytest.skip(cluster.missing())
    journey = walked(page, programs, tmp_path_factory)
    if pytestconfig.getoption("--golden"):
        page.write_text(journey.text, "utf-8")
    assert journey.text == page.read_text("utf-8")
    assert journey.dry_runs, "a journey leads to a run"


def test_the_real_parser_takes_every_run(
    programs: Path, tmp_path_factory: pytest.TempPathFactory, parser: Parser
) -> None:
    """Whatever `train --dry-run` printed is a command that LLaMA-Factory accepts."""
    pages = [page for page in journeys.PAGES if not trains(page)]
    runs = [run for page in pages for run in walked(page, programs, tmp_path_factory).dry_runs]
    results = parser(runs[0][0], *(line.partition("llamafactory-cli train ")[2] for _, line in runs))
    assert len(results) == len(runs) > 0
    assert not [result for result in results if "error" in result]
