"""The rows of `list`: every recipe of the catalogue, and the filters."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import program

from validator.catalogue import bundled_recipes
from validator.commands import list as table
from validator.errors import RecipeError
from validator.knowledge.devices import parse_machine
from validator.run.settings import run_of_values

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/catalogue/*"])

ROOT = Path(__file__).parents[2]


@cache
def every_row() -> list[bundled_recipes.CatalogueRow]:
    """The rows without a filter, made once."""
    return bundled_recipes.catalogue_rows()


def test_one_row_for_each_recipe() -> None:
    assert [row.name for row in every_row()] == sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


def test_every_recipe_is_found_by_its_own_model_and_machine() -> None:
    named = [each for each in bundled_recipes.resolved_recipes() if each.model and each.model.id and each.machine]
    assert len(named) > 200
    for each in named:
        passes = bundled_recipes._filter_of(str(each.model_name), None)
        assert passes(each), each.workspace.recipe
        assert bundled_recipes._runs_on(each, parse_machine(str(each.machine)))


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
    with pytest.raises(RecipeError, match=r"plan --model qwen3-8b --machine M --write FILE.yaml` makes one"):
        table.format_catalogue([], model="qwen3-8b")
    with pytest.raises(RecipeError, match="is not known"):
        bundled_recipes.catalogue_rows(model="gwen7b")


def listed(*words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(program.run("list", *words, "--format", "json").output)
    return rows


@pytest.mark.parametrize(
    ("machine", "model"),
    [("1xl40s", "qwen3-8b"), ("gh200-144g", "qwen3-4b-2507"), ("2xa40", "qwen3-8b"), ("8xh20", "qwen3-32b")],
)
def test_where_no_recipe_is_made_for_a_machine_those_that_run_there_are_offered(machine: str, model: str) -> None:
    rows = listed("--machine", machine, "--model", model)
    target = parse_machine(machine)
    assert rows
    for row in rows:
        there = parse_machine(row["machine"])
        assert there.device.id == target.device.id != parse_machine(row["made_for"]).device.id
        assert there.world == parse_machine(row["made_for"]).world <= target.world
        judged = program.run("explain", row["name"], "--machine", row["machine"], "--format", "json")
        assert (row["verdict"], json.loads(judged.output)["verdict"]) == ("fits", "fits")
    said = " ".join(program.run("list", "--machine", machine, "--model", model).output.split())
    assert f"no recipe is made for {rows[0]['machine']}; these, for other devices, run there unchanged" in said


def test_recipes_made_for_a_machine_stand_alone() -> None:
    assert all(row["made_for"] == row["machine"] for row in listed("--machine", "2xrtx-4090", "--model", "qwen3-8b"))


def test_a_machine_on_which_no_recipe_runs_is_led_to_plan() -> None:
    result = program.run_to_exception("list", "--machine", "rtx-2060", "--model", "qwen3-32b")
    assert isinstance(result.exception, RecipeError)
    assert "plan --model qwen3-32b --machine rtx-2060 --write FILE.yaml" in str(result.exception)
