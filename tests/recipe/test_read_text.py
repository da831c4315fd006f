"""Bytes and paths that are no recipe."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from validator.errors import RecipeError
from validator.recipe.recipe_file import load_recipe
from validator.recipe.safe_read import read_bytes, read_text


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
    (problem,) = load_recipe(str(path)).problems
    assert problem.code == "LOA001"
    assert says in problem.message


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    told = {
        tmp_path: "is a folder", tmp_path / "none.yaml": "no such file", "x" * 5000: "too long", "x" * 300: "too long",
        tmp_path / "loop": "symbolic links", tmp_path / "pipe": "is a pipe", tmp_path / "link": "is a pipe",
        tmp_path / "socket": "is a socket", "/dev/zero": "is a device", "/dev/tty": "is a device",
        "a\0b": "no file can have", "\ud800": "no file can have", "/proc/self/mem": "input/output error",
    }  # fmt: skip
    for path, says in told.items():
        (problem,) = load_recipe(str(path)).problems
        assert problem.code == "LOA001"
        assert says in problem.message


def test_no_more_than_a_mebibyte_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert len(read_bytes(path)) == (1 << 20) + 1
    with pytest.raises(RecipeError, match="larger than 1 MiB"):
        read_text(str(path))


def test_a_file_of_the_kernel_has_no_size_but_contents() -> None:
    assert "Name" in read_text("/proc/self/status")
