"""From nothing to a run: every page of docs/journeys/ still prints what it says, and each of its runs is a command that
LLaMA-Factory's own parser takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import cluster, journeys
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


@pytest.mark.sample(
    one_in=3, whole_for=["README*", "validator/commands/*", "validator/output/*", "tests/support/journeys.py"]
)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[pytest.mark.training] if trains(page) else []) for page in journeys.PAGES],
)
def test_a_journey_goes_as_it_is_told(
    page: Path, programs: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if queues(page) and cluster.missing():
        pytest.skip(cluster.missing())
    journey = journeys.replay(page, programs, tmp_path)
    if request.config.getoption("--golden"):
        page.write_text(journey.text, "utf-8")
    assert journey.text == page.read_text("utf-8")
    assert journey.dry_runs, "a journey leads to a run"
    if not trains(page):
        parser: Parser = request.getfixturevalue("parser")
        taken = [parser(folder, line.partition("llamafactory-cli train ")[2])[0] for folder, line in journey.dry_runs]
        assert not [answer for answer in taken if "error" in answer]
