"""Where routes lead, in recipes and in the files that they name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator.recipe.omegaconf import Position
from validator.recipe.places import Route, place_in_file
from validator.recipe.recipe_file import parse_recipe

RECIPE = """# /// recipe
# machine: 8xa100-80g
# predicted: {device_gib: 1.5}
# ///
stage: sft
shared: &shared {rate: 1, betas: [1, 2]}
list:
  - 1
  - {b: 2}
'quoted':   x
again: *shared
merged:
  <<: *shared
  own: 3
empty:
flow: {a: {b: [x, {c: d}]}}
"""


@pytest.mark.parametrize(
    ("route", "value", "key"),
    [
        (("stage",), (5, 8), (5, 1)),
        (("list",), (8, 3), (7, 1)),
        (("list", 1, "b"), (9, 9), (9, 6)),
        (("list", 7), (8, 3), (8, 3)),  # the list around it
        (("quoted",), (10, 13), (10, 1)),
        (("again",), (11, 8), (11, 1)),  # the alias, not its anchor
        (("again", "betas", 1), (6, 38), (6, 38)),
        (("merged", "own"), (14, 8), (14, 3)),
        (("merged", "rate"), (6, 24), (6, 18)),
        (("merged", "absent"), (13, 3), (13, 3)),
        (("empty",), (15, 7), (15, 1)),
        (("flow", "a", "b", 1, "c"), (16, 23), (16, 20)),
        (("stage", "deeper"), (5, 8), (5, 8)),
        (("machine",), (2, 12), (2, 3)),
        (("predicted", "device_gib"), (3, 27), (3, 15)),
        (("absent",), (1, 1), (1, 1)),
        ((), (1, 1), (1, 1)),
    ],
)
def test_in_a_recipe(route: Route, value: Position, key: Position) -> None:
    document = parse_recipe("x.yaml", RECIPE)
    assert document.position(route) == value
    assert document.position(route, at_key=True) == key


def test_every_kind_of_line_break_and_wide_characters_count() -> None:
    document = parse_recipe("x.yaml", "\ufeff中文: 数据\r\nb: 2\rc: 3\n")
    assert document.position(("b",)) == (2, 4)
    assert document.position(("c",)) == (3, 4)
    assert parse_recipe("x.yaml", "中文: 数据").position(("中文",)) == (1, 5)


JSON = """{
\t"a": {"b": [1, {"c": true}]},
  "a\\u0062" : "x, y: {",
  "twice": 1, "twice": [2],
  "none": {}
}
"""


@pytest.mark.parametrize(
    ("route", "value", "key"),
    [
        (("a",), (2, 7), (2, 2)),
        (("a", "b", 1, "c"), (2, 23), (2, 18)),
        (("ab",), (3, 15), (3, 3)),
        (("twice",), (4, 24), (4, 15)),  # the last one counts
        (("none", "absent"), (5, 11), (5, 11)),
        (("a", "b", 9), (2, 13), (2, 13)),
        (("absent",), (1, 1), (1, 1)),
        ((), (1, 1), (1, 1)),
    ],
)
def test_in_json(route: Route, value: Position, key: Position) -> None:
    assert place_in_file("x.json", JSON, route) == value
    assert place_in_file("x.json", JSON, route, at_key=True) == key


@pytest.mark.parametrize(
    ("path", "text", "place"),
    [
        ("x.json", '{"a": 1,\n "b": }', (2, 7)),
        ("x.json", "", (1, 1)),
        ("x.json", '{"a": 1} x', (1, 10)),
        ("x.json", "[" * 100_000, (1, 1)),
        ("x.json", '{"a": ' + "9" * 5000 + "}", (1, 1)),
        ("x.yaml", "a: 1\nb: [1, 2\nc: 3\n", (3, 2)),
        ("x.yaml", "a: 1\nb: {c: 2}\n", (2, 8)),
        ("x.yaml", "", (1, 1)),
    ],
)
def test_a_broken_file_leads_to_its_fault(path: str, text: str, place: Position) -> None:
    assert place_in_file(path, text, ("b", "c")) == place


TREES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def routes(tree: Any) -> list[tuple[str | int, ...]]:
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [(), *((part, *rest) for part, inner in parts for rest in routes(inner))]


def at(tree: Any, route: Route) -> Any:
    for part in route:
        tree = tree[part]
    return tree


@given(TREES, st.sampled_from([None, 1, "\t"]))
def test_every_route_leads_to_its_value(tree: Any, indent: int | str | None) -> None:
    text = json.dumps(tree, indent=indent)
    for route in routes(tree):
        line, column = place_in_file("x.json", text, route)
        rest = "\n".join(text.split("\n")[line - 1 :])[column - 1 :]
        assert json.JSONDecoder().raw_decode(rest)[0] == at(tree, route)
