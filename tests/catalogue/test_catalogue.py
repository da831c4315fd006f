"""The rows of `list`: every recipe of the catalogue, and the filters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from validator.catalogue import bundled_recipes
from validator.commands import list as table
from validator.errors import RecipeError
from validator.run.settings import run_of_values

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/catalogue/*"])

ROOT = Path(__file__).parents[2]


@cache
def every_row() -> list[bundled_recipes.CatalogueRow]:
    """The rows without a filter, made once."""
    return bundled_recipes.catalogue_rows()


def test_one_row_for_each_recipe() -> None:
    assert [row.name for row in every_row()] == sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


def test_a_local_model_is_shown_as_the_recipe_writes_it() -> None:
    assert {row.name: row.model for row in every_row()}["tiny-cpu-lora"] == "demo/tiny-qwen3"


@pytest.mark.parametrize(
    ("field", "value"),
    [("method", "lora"), ("method", "full-dpo"), ("model", "Qwen/Qwen3-8B"), ("model", "qwen3-8b")],
)
def test_filters_narrow_and_agree_with_the_rows(field: str, value: str) -> None:
    shown = {"qwen3-8b": "Qwen/Qwen3-8B"}.get(value, value)
    expected = [row for row in every_row() if getattr(row, field).removesuffix("-Base") == shown]
    assert expected
    asked: dict[str, Any] = {field: value}
    assert bundled_recipes.catalogue_rows(**asked) == expected


@pytest.mark.parametrize(
    ("told", "hours"),
    [
        ({"hours": [1.2, 15]}, (1.2, 15)), ({"hours": [1.2]}, None), ({"hours": 3}, None), ({"hours": ["x", 2]}, None),
        ({}, None), (None, None),
    ],
)  # fmt: skip
def test_hours_are_those_of_the_header_block(told: object, hours: object) -> None:
    assert bundled_recipes._stated_hours(run_of_values({}, {"predicted": told})) == hours


@pytest.mark.parametrize("variant", ["dpo", "pt", "kto", "32k", "fsdp", "8bit", "tools"])
def test_variants_are_found_by_what_is_special_about_them(variant: str) -> None:
    expected = [row.name for row in every_row() if variant in row.name.split("-")]
    assert expected
    assert [row.name for row in bundled_recipes.catalogue_rows(method=variant)] == expected


def test_a_larger_machine_runs_the_recipes_of_a_smaller_one_of_its_kind() -> None:
    small = {row.name for row in bundled_recipes.catalogue_rows(machine="1xrtx-4090")}
    assert small <= {row.name for row in bundled_recipes.catalogue_rows(machine="8xrtx-4090")}
    assert small
    assert not small & {row.name for row in bundled_recipes.catalogue_rows(machine="8xa100-80g")}


def test_rows_are_judged_for_the_main_memory_that_is_given() -> None:
    own, little = (
        bundled_recipes.catalogue_rows(machine="8xa100-80g"),
        bundled_recipes.catalogue_rows(machine="8xa100-80g", host_ram_gib=32),
    )
    assert [row.name for row in little] == [row.name for row in own]
    larger = {row.name for row in own if (row.host_gib or 0) > 32}
    assert {"fits"} <= {row.verdict for row in own if row.name in larger}
    assert {row.verdict for row in little if row.name in larger} == {"exceeds"}


def test_the_table_is_aligned_and_complete() -> None:
    rows = every_row()
    lines = table.format_catalogue(rows).splitlines()
    assert len(lines) == len(rows) + 1
    start = lines[0].index("machine")
    assert all(line[start - 1] == " " and line[start] != " " for line in lines)


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [
        (200, set()),
        (100, {"model", "method"}),
        (80, {"model", "method", "host_gib", "rows"}),
        (40, {*table.OPTIONAL_COLUMNS}),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns(
    monkeypatch: pytest.MonkeyPatch, columns: int, left_out: set[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    titles, *lines = table.format_catalogue(bundled_recipes.catalogue_rows("2xrtx-4090")).splitlines()
    assert set(table.COLUMNS) - set(titles.split()) == left_out
    assert columns < 80 or max(map(len, [titles, *lines])) <= columns


def test_no_match_is_said() -> None:
    with pytest.raises(RecipeError, match="no recipe matches"):
        table.format_catalogue([])
    with pytest.raises(RecipeError, match="is not known"):
        bundled_recipes.catalogue_rows(model="gwen7b")
