"""JSON files that are broken, each by one clear sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.recipe.safe_read import parse_json, read_json, read_yaml


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1 column 2"),
        ('{"a": 1,}', "column"),  # of the comma since Python 3.13, of what follows before
        ("[" * 100_000, "nested too deeply"),
        ("[" * 101 + "]" * 101, "nested too deeply"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
        ('{"a": ' + "9" * 309 + "}", "too many digits"),
        ("", "line 1 column 1"),
    ],
)
def test_json_faults(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"x\.json") as caught:
        read_json(str(path))
    assert says in str(caught.value)


def test_json_may_be_nested_as_far_as_anything_means_something() -> None:
    assert parse_json('{"a":' * 50 + "[" * 50 + "1" + "]" * 50 + "}" * 50)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\n", "not valid YAML"),
        ("a: !!bool x\n", "`x` is no bool"),
        ("a: " + "[" * 20_000 + "]" * 20_000, "100 levels"),
        ("a: " + "[" * 101 + "]" * 101, "100 levels"),
        ("a: &a [*a]\n", "contains itself"),
        ("a: " + "9" * 5000, "too many digits"),
    ],
)
def test_yaml_faults(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        read_yaml(str(path))
    assert says in str(caught.value)


def test_json_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    with pytest.raises(json.JSONDecodeError), path.open(encoding="utf-8") as stream:
        json.load(stream)  # as LLaMA-Factory, accelerate and transformers read their files
    with pytest.raises(RecipeError, match="it begins with a byte order mark"):
        read_json(str(path))
