"""The header block: what it gives, where its fields are, what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.recipe.recipe_file import load_recipe, parse_recipe

HEADER = """# /// recipe
# summary: x
# machine: 8xa100-80g
#
# samples: 80000   # comment
# predicted: {device_gib: 1.5}
# ///
# an ordinary comment
model_name_or_path: Qwen/Qwen3-8B
"""


def test_header_block() -> None:
    document = parse_recipe("x.yaml", HEADER)
    assert document.header == {
        "summary": "x", "machine": "8xa100-80g", "samples": 80000, "predicted": {"device_gib": 1.5},
    }  # fmt: skip
    assert document.position(("samples",)) == (5, 12)
    assert document.position(("machine",)) == (3, 12)
    assert document.values == {"model_name_or_path": "Qwen/Qwen3-8B"}


@pytest.mark.parametrize("change", [("\n", "\r\n"), ("# ///\n", "# ///  \n"), ("# /// recipe", "\ufeff# /// recipe")])
def test_header_block_survives_editors(change: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(HEADER.replace(*change).encode())
    document = load_recipe(str(path))
    assert document.readable
    assert document.header["samples"] == 80000
    assert document.position(("samples",)) == (5, 12)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("# /// recipe\n# a: 1\nb: 1\n", 1, "not closed"),
        ("# /// recipe\n# a: 1\n\n# ///\nb: 1\n", 1, "not closed"),
        ("# /// recipe\n# ///\n# /// recipe\n# ///\nb: 1\n", 3, "2 header blocks"),
        ("# /// recipe\n# a: [1\n# ///\nb: 1\n", 3, "not valid YAML"),
        ("# /// recipe\n# a: 1\n# a: 2\n# ///\nb: 1\n", 3, "written twice"),
        ("# /// recipe\n# - 1\n# ///\nb: 1\n", 2, "a list"),
    ],
)
def test_header_faults(text: str, line: int, says: str) -> None:
    found = parse_recipe("x.yaml", text).problems
    assert [(problem.code, problem.line) for problem in found] == [("LOA005", line)]
    assert says in found[0].message


@pytest.mark.parametrize("text", ["# /// script\n# a: 1\n# ///\nb: 1\n", "b: '# /// recipe'\n", "b: 1 # /// recipe\n"])
def test_other_blocks_are_no_header(text: str) -> None:
    document = parse_recipe("x.yaml", text)
    assert document.readable
    assert document.header == {}
