"""Ranges of releases: what they hold, what a recipe is then judged by."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from validator import cli
from validator.diagnostic import RecipeError, Severity
from validator.judge import check
from validator.read.recipe import parse
from validator.tables import data, releases
from validator.train import launch


@pytest.mark.parametrize(
    ("wanted", "version", "held"),
    [
        (None, "0.9.5", True),
        ("0.9.5", "0.9.5", True),
        ("0.9.5", "0.9.4", False),
        (">=0.9.4", "0.9.4", True),
        (">=0.9.4", "0.9.10", True),
        (">0.9.4", "0.9.4", False),
        ("<5", "4.57.1", True),
        ("<5", "5.0.0", False),
        ("<=5", "5.0.0", True),
        ("!=5.0", "5.0.0", False),
        (">=0.9.3, <0.9.5", "0.9.4", True),
        (">=0.9.3, <0.9.5", "0.9.5", False),
        (4.57, "4.57.0", True),
        (">=5.0.0rc1", "5.0.0", True),
    ],
)
def test_a_range_holds(wanted: object, version: str, held: bool) -> None:
    assert releases.admits(wanted, version) is held


@pytest.mark.parametrize("wanted", ["", "newest", ">=", ">=x.1", "~=0.9", [1], "0.9.*"])
def test_what_is_no_range_is_said_so(wanted: object) -> None:
    with pytest.raises(RecipeError, match="no range of releases"):
        releases.admits(wanted, "0.9.5")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({}, ["0.9.5/5.6.0"]),
        ({"machine": "x"}, ["0.9.5/5.6.0"]),
        ({"llamafactory": ">=0.9.4"}, ["0.9.5/5.6.0", "0.9.4/4.57.1"]),
        ({"llamafactory": "0.9.3"}, ["0.9.3/4.52.4"]),
        ({"transformers": "<5"}, ["0.9.5/4.57.1", "0.9.4/4.57.1", "0.9.3/4.52.4"]),
        ({"llamafactory": ">=0.9.5", "transformers": "<5"}, ["0.9.5/4.57.1"]),
    ],
)
def test_the_releases_of_a_recipe(header: dict[str, str], expected: list[str]) -> None:
    assert [releases.name(pair) for pair in releases.pairs(header)] == expected


def test_a_range_without_a_release_names_those_there_are() -> None:
    with pytest.raises(RecipeError, match=r"fits llamafactory >=2; there are 0\.9\.5 with 5\.6\.0"):
        releases.pairs({"llamafactory": ">=2"})


@pytest.mark.parametrize(
    ("header", "since", "until", "held"),
    [
        ({}, "", "", True),
        ({}, "transformers 5.0.0", "", True),
        ({"transformers": "<5"}, "transformers 5.0.0", "", False),
        ({"llamafactory": ">=0.9.3"}, "llamafactory 0.9.4", "", True),
        ({"llamafactory": "0.9.3"}, "llamafactory 0.9.4", "", False),
        ({"llamafactory": "?"}, "llamafactory 0.9.4", "", True),
        ({}, "", "transformers 5.0.0", False),
        ({"transformers": "<5"}, "", "transformers 5.0.0", True),
        ({"llamafactory": "0.9.4"}, "", "llamafactory 0.9.4", False),
        ({"llamafactory": ">=0.9.3"}, "", "llamafactory 0.9.4", True),
        ({"llamafactory": "?"}, "", "llamafactory 0.9.4", False),
        ({"llamafactory": "0.9.4"}, "transformers 4.53.0", "llamafactory 0.9.5", True),
        ({"llamafactory": ">=0.9.3", "transformers": "<4.53"}, "transformers 4.53.0", "llamafactory 0.9.5", False),
        ({"llamafactory": "0.9.5"}, "transformers 4.53.0", "llamafactory 0.9.5", False),
    ],
)
def test_a_rule_holds_between_two_releases(header: dict[str, str], since: str, until: str, held: bool) -> None:
    assert releases.holds(header, since, until) is held


def test_the_releases_seen_are_those_of_the_tables() -> None:
    assert (releases.seen("llamafactory"), releases.seen("transformers")) == releases.newest()
    generated = {package: version for name in ("deepspeed", "values") for package, version in _source(name).items()}
    assert {package: releases.seen(package) for package in generated} == generated


def _source(name: str) -> dict[str, str]:
    return {package: version.partition("+")[0] for package, version in data.table(name)["source"].items()}


def test_what_is_installed_is_compared_with_the_range() -> None:
    installed = {"llamafactory": "0.9.3", "transformers": "4.52.4"}
    assert list(releases.outside({"llamafactory": ">=0.9.4"}, installed)) == [
        "the recipe is for llamafactory >=0.9.4, and 0.9.3 is installed here"
    ]
    assert list(releases.outside({}, installed)) == []
    assert list(releases.outside({"llamafactory": "new"}, installed)) == []


def test_training_starts_with_a_release_in_the_range_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "x.yaml"
    text = "model_name_or_path: Qwen/Qwen3-8B\ndataset: a\ndo_train: true\ntemplate: qwen3\nbf16: true\n"
    recipe.write_text(f'# /// recipe\n# llamafactory: ">=0.9.4"\n# ///\n{text}dataset_dir: ONLINE\noutput_dir: out\n')
    monkeypatch.setattr(launch, "installed", lambda _names: {"llamafactory": "0.9.3"})
    done = CliRunner().invoke(cli.group, ["train", str(recipe)])
    assert done.exit_code == 1
    assert "0.9.3 is installed here" in str(done.exception or "") + done.output


def test_installed_releases_are_read() -> None:
    assert launch.installed(["click", "no-such-package"]).keys() == {"click"}


@pytest.mark.parametrize(
    ("text", "header", "code", "says"),
    [
        ("use_eaft_loss: true", {"llamafactory": ">=0.9.4"}, "SCH001", "0.9.4, which the recipe's range holds"),
        ("group_by_length: true", {}, "SCH001", "train_sampling_strategy"),
        ("group_by_length: true", {"llamafactory": "0.9.4"}, "SCH006", "gone since transformers 5.2.0"),
        ("use_cache: true", {"llamafactory": ">=0.9.3"}, "SCH001", "0.9.4"),
        ("warmup_steps: 0.1", {"llamafactory": "0.9.4"}, "SCH003", "0.1, not a whole number"),
        ("warmup_ratio: 0.1", {}, "SCH006", "warmup_steps"),
    ],
)
def test_keys_by_release(text: str, header: dict[str, str], code: str, says: str) -> None:
    document = parse("x.yaml", f"model_name_or_path: Qwen/Qwen3-8B\n{text}\n")
    document.header = header
    found = [d for d in check.check_document(document).diagnostics if d.code.startswith("SCH")]
    assert [d.code for d in found if d.severity is not Severity.NOTE] == [code]
    assert says in found[0].message
