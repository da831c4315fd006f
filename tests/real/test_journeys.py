"""From nothing to a run: every story of docs/tutorials/, docs/howto/ and the READMEs still prints what it says, and
each of its runs is a command that LLaMA-Factory's own parser takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import cluster, journeys
from support.journeys import Story
from support.real_parser import Parser

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.process]


def queues(story: Story) -> bool:
    """Whether the story submits jobs."""
    return "<!-- on slurm -->" in story.text


def trains(story: Story) -> bool:
    """Whether the story ends in a real fine-tune."""
    return queues(story) or bool(re.search(r"(?m)^\$ lmf-recipes train (?!.*--dry-run)", story.text))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return journeys.installation(tmp_path_factory.mktemp("installation"))


@pytest.mark.sample(
    one_in=3, whole_for=["README*", "validator/commands/*", "validator/output/*", "tests/support/journeys.py"]
)
@pytest.mark.parametrize(
    "story",
    [
        pytest.param(each, id=str(each), marks=[pytest.mark.training] if trains(each) else [])
        for each in journeys.stories()
    ],
)
def test_a_journey_goes_as_it_is_told(
    story: Story, programs: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if queues(story) and cluster.missing():
        pytest.skip(cluster.missing())
    journey = journeys.replay(story, programs, tmp_path)
    if request.config.getoption("--golden"):
        story.page.write_text(story.page.read_text("utf-8").replace(story.text, journey.text), "utf-8")
    else:
        assert journey.text == story.text
    assert journey.dry_runs, "a journey leads to a run"
    if not trains(story):
        parser: Parser = request.getfixturevalue("parser")
        taken = [parser(folder, line.partition("llamafactory-cli train ")[2])[0] for folder, line in journey.dry_runs]
        assert not [answer for answer in taken if "error" in answer]
