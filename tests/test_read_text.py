"""Bytes and paths that are no recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.read.recipe import load


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8"),
        ("a: 中".encode("gbk"), "not UTF-8"),
        ("a: 1\n".encode("utf-16"), "not UTF-8"),
        (b"a: 1\x00", "NUL"),
        (b"a: 1\n" * 300_000, "larger than 1 MiB"),
    ],
)
def test_bytes_that_are_no_recipe(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    (problem,) = load(str(path)).problems
    assert problem.code == "LOA001"
    assert says in problem.message


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    for path, says in [(tmp_path, "folder"), (tmp_path / "none.yaml", "no such file"), ("x" * 5000, "too long")]:
        (problem,) = load(str(path)).problems
        assert problem.code == "LOA001"
        assert says in problem.message
