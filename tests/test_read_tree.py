"""JSON files that are broken, each by one clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.diagnostic import RecipeError
from validator.read.tree import read_json


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "line 1 column 2"),
        ('{"a": 1,}', "column 9"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
        ("", "line 1 column 1"),
    ],
)
def test_json_faults(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=r"x\.json") as caught:
        read_json(str(path))
    assert says in str(caught.value)


def test_json_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(str(path)) == {"a": 1}
