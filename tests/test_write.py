"""Writing for a user: whole or not at all, and nothing of theirs is lost."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from validator.diagnostic import RecipeError
from validator.write import file, registry

ENTRY = {"file_name": "mine.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"}}


@pytest.fixture(params=[0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_comes_with_its_folders_and_the_users_mask(tmp_path: Path, umask: int) -> None:
    target = tmp_path / "a/b/recipe.yaml"
    file.create(target, "stage: sft\n")
    assert target.read_text() == "stage: sft\n"
    assert mode(target) == 0o666 & ~umask
    assert [path.name for path in target.parent.iterdir()] == ["recipe.yaml"]


def test_what_is_there_is_not_created_again(tmp_path: Path) -> None:
    target = tmp_path / "recipe.yaml"
    target.write_text("mine")
    with pytest.raises(RecipeError, match="exists and is not overwritten"):
        file.create(target, "theirs")
    assert target.read_text() == "mine"


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(RecipeError, match=r"cannot be written: not a directory|cannot be written: file exists"):
        file.create(tmp_path / "data/dataset_info.json", "{}")


def test_a_file_is_replaced_with_its_mode_and_through_links(tmp_path: Path) -> None:
    target, link = tmp_path / "page.html", tmp_path / "link.html"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    file.replace(link, "new \udcff")
    assert target.read_text() == "new &#56575;"
    assert mode(target) == 0o640
    assert link.is_symlink()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_be_replaced_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RecipeError, match="cannot be written"):
        file.replace(tmp_path / "folder", "text")
    with pytest.raises(RecipeError, match="cannot be written"):
        file.replace(tmp_path / "nowhere/file", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{\n}\n",
        '{"a": {"file_name": "a.json"}}',
        '{\n    "a": {\n        "file_name": "a.json"\n    }\n}\n\n',
        '{\n\t"a": {"file_name": "}"}\n}',
        '{\r\n  "a": {"file_name": "a.json"}\r\n}\r\n',
    ],
)
def test_entries_are_added_and_all_else_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "dataset_info.json"
    path.write_bytes(text.encode())
    assert registry.add(path, {"mine": ENTRY}) == {"mine": ENTRY}
    written = path.read_bytes().decode()
    assert json.loads(written) == {**json.loads(text), "mine": ENTRY}
    assert list(json.loads(written))[-1] == "mine"
    assert written.startswith(text.rstrip().removesuffix("}").rstrip())
    assert ("\r\n" in text) == ("\r\n" in written)
    assert "\n" not in written.replace("\r\n", "") if "\r\n" in text else True
    assert registry.add(path, {"mine": ENTRY}) == {}
    assert path.read_bytes().decode() == written


def test_a_registry_is_made(tmp_path: Path) -> None:
    registry.add(tmp_path / "data/dataset_info.json", {"mine": ENTRY})
    assert json.loads((tmp_path / "data/dataset_info.json").read_text()) == {"mine": ENTRY}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"mine": {"file_name": "other.json"}}', "defines `mine` already"),
        ("[]", "is not a JSON object"),
        ('{"mine": ', "is not valid JSON"),
        ("", "is not valid JSON"),
    ],
)
def test_what_stands_there_is_never_changed(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "dataset_info.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=why):
        registry.add(path, {"mine": ENTRY, "more": ENTRY})
    assert path.read_text() == text
