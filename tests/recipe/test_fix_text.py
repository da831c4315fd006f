"""Edits of a recipe's text: exact, or refused."""

from __future__ import annotations

import pytest

from validator.finding import Edit
from validator.recipe.recipe_file import parse_recipe
from validator.recipe.text_edits import UnfitError, apply_edits

REMOVE, RENAME = Edit("remove", "a"), Edit("rename", "a", "b")


def to(value: str | float | bool | tuple[str, ...]) -> Edit:
    return Edit("set", "a", value)


@pytest.mark.parametrize(
    ("text", "edit", "after"),
    [
        ("a: 1\nx: 2\n", RENAME, "b: 1\nx: 2\n"),
        ("\"a\" : 1 # why\nx: 2\n", RENAME, "\"b\" : 1 # why\nx: 2\n"),
        ("'a': 1\r\nx: 2\r\n", RENAME, "'b': 1\r\nx: 2\r\n"),
        ("{a: 1, x: 2}\n", RENAME, "{b: 1, x: 2}\n"),
        ("x: &n 1\na: *n\n", RENAME, "x: &n 1\nb: *n\n"),
        ("x: 2\na: 1", RENAME, "x: 2\nb: 1"),
        ("# a: 1\nx: 2\na:   1   # a: 1\n", to(3), "# a: 1\nx: 2\na:   3   # a: 1\n"),
        ("a: \"1e-4\"\n", to(1e-4), "a: 1.0e-4\n"),
        ("a: \"1.0e-4\" # rate\n", to(1e-4), "a: 1.0e-4 # rate\n"),
        ("a: '1e-05'\n", to(1e-5), "a: 1.0e-5\n"),
        ("a: No\n", to("no"), "a: \"no\"\n"),
        ("a: COSINE\n", to("cosine"), "a: cosine\n"),
        ("a: 1\n", to(True), "a: true\n"),
        ("a:\nx: 2\n", to(False), "a: false\nx: 2\n"),
        ("a: # empty\nx: 2\n", to(False), "a: false # empty\nx: 2\n"),
        ("a: wandb,tensorboard\n", to(("wandb", "tensorboard")), "a: [\"wandb\", \"tensorboard\"]\n"),
        ("a: [1, 2] # c\nx: 2\n", to("all"), "a: all # c\nx: 2\n"),
        ("中: 文\na: ä # 很\n", to("ö"), "中: 文\na: ö # 很\n"),
        ("x: 2\na: 1 # gone, too\ny: 3\n", REMOVE, "x: 2\ny: 3\n"),
        ("x: 2\r\na: 1\r\ny: 3\r\n", REMOVE, "x: 2\r\ny: 3\r\n"),
        ("x: 2\ra: 1\ry: 3\r", REMOVE, "x: 2\ry: 3\r"),
        ("x: 2\na: 1", REMOVE, "x: 2\n"),
        ("a:\n  - 1\n  - 2 # c\n\n# stays\nx: 2\n", REMOVE, "\n# stays\nx: 2\n"),
        ("a: |\n  1\n  2\n\n# stays\nx: 2\n", REMOVE, "\n# stays\nx: 2\n"),
        ("a: {p: 1,\n    q: 2}\nx: 2\n", REMOVE, "x: 2\n"),
        ("a:\nx: 2\n", REMOVE, "x: 2\n"),
        ("  a: 1\n  x: 2\n", REMOVE, "  x: 2\n"),
        ("a: 1\nx: 2\na: 1\n", REMOVE, "a: 1\nx: 2\n"),
        ("{a: 1, x: 2}\n", REMOVE, "{x: 2}\n"),
        ("{x: 2, a: 1}\n", REMOVE, "{x: 2}\n"),
        ('{"x": 2,\n "a": [1, 2],\n "b": 3}\n', REMOVE, '{"x": 2,\n "b": 3}\n'),
        ('{"a": 1}', REMOVE, "{}"),
        ('{"a": "s", "x": 2}', Edit("set", "a", "dpo"), '{"a": "dpo", "x": 2}'),
        ('{"a": 1, "x": 2}', Edit("set", "a", "dpo"), '{"a": "dpo", "x": 2}'),
        ('{"a": 1, "x": 2}', Edit("set", "a", True), '{"a": true, "x": 2}'),
        ('{"a": 1, "x": 2}', RENAME, '{"b": 1, "x": 2}'),
    ],
)  # fmt: skip
def test_all_else_stays(text: str, edit: Edit, after: str) -> None:
    assert apply_edits(parse_recipe("x.yaml", text), [edit]).text == after


@pytest.mark.parametrize(
    ("text", "edit", "why"),
    [
        ("{x: 2, # one\n a: 1}\n", REMOVE, "a comment stands beside"),
        ("x: &n 1\na: *n\n", to(2), "an alias"),
        ("a: &n 1\nx: *n\n", to(2), "an alias"),
        ("a: !!str 1\nx: 2\n", to(2), "by a tag"),
        ("a: |\n  1\nx: 2\n", to(2), "several lines"),
        ("a:\n  p: 1\nx: 2\n", to(2), "several lines"),
        ("? a\n: 1\nx: 2\n", REMOVE, "lines of its own"),
        ("\"\\x61\": 1\nx: 2\n", RENAME, "unusual"),
        ("a: &n 1\nx: *n\n", REMOVE, "does not fit"),
        ("<<: {a: 1}\nx: 2\n", REMOVE, "lines of its own"),
        ("a: 1\nb: 2\n", Edit("remove", "c"), "not written"),
        ("", REMOVE, "no key"),
    ],
)  # fmt: skip
def test_what_would_not_be_exact_is_refused(text: str, edit: Edit, why: str) -> None:
    with pytest.raises(UnfitError, match=why):
        apply_edits(parse_recipe("x.yaml", text), [edit])


def test_several_edits_at_once() -> None:
    edits = [RENAME, Edit("set", "a", "z"), Edit("remove", "x")]
    assert apply_edits(parse_recipe("x.yaml", "a: 1\nx: 2\ny: 3\n"), edits).text == "b: z\ny: 3\n"


def test_two_values_for_one_key_are_refused() -> None:
    with pytest.raises(UnfitError, match="same place"):
        apply_edits(parse_recipe("x.yaml", "a: 1\n"), [to(2), to(3)])
