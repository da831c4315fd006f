"""Releases that have a model type and cannot train it."""

from __future__ import annotations

import pytest

from validator.knowledge import model_classes
from validator.knowledge.broken_releases import broken_releases
from validator.knowledge.releases import range_admits
from validator.knowledge.tables import json_table, yaml_table

ROWS = list(yaml_table("broken"))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_known_types_readable_ranges_and_a_source(name: str) -> None:
    row = yaml_table("broken")[name]
    kinds = [kind for kind in row["types"] if kind != "any"]
    assert all(model_classes.first_release([kind]) for kind in kinds)
    assert row["releases"].keys() <= {"llamafactory", "transformers", "torch"}
    assert not [each for each in row["releases"].values() if range_admits(each, "0.0.1") and "<" not in each]
    assert row["source"]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_found_by_each_of_its_types(name: str) -> None:
    row = yaml_table("broken")[name]
    for kind in row["types"]:
        assert row["what"] in [each.what for each in broken_releases("llama" if kind == "any" else kind)]


def test_part_of_a_type_is_no_type() -> None:
    whats = {each.what for each in broken_releases("gemma")}
    assert whats == {each.what for each in broken_releases("llama")}


def test_convolutions_are_those_of_the_classes() -> None:
    assert sorted(yaml_table("broken")["conv3d"]["types"]) == json_table("families")["modules"]["Conv3d"]
