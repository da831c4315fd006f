"""Whatever a path is, asking what lies there neither fails nor waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from validator.recipe import safe_read


def test_what_lies_at_a_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    for link, to in [("link", "file"), ("loop", "loop"), ("dangling", "none")]:
        (tmp_path / link).symlink_to(tmp_path / to)
    told = {"": "folder", "file": "file", "link": "file", "pipe": "pipe", "/dev/null": "device", "loop": None,
            "dangling": None, "none": None, "file/x": None, "x" * 300: None, "x/" * 3000: None, "x" * (1 << 20): None,
            "a\0b": None, "\ud800": None, "~nosuchuser/x": None}  # fmt: skip
    assert {path: safe_read.path_kind(tmp_path / path) for path in told} == told
    assert {path.name for path in safe_read.list_folder(tmp_path)} == {"file", "pipe", "link", "loop", "dangling"}
    assert {path.name for path in safe_read.glob_folder(tmp_path, "l*")} == {"link", "loop"}
    assert [*safe_read.glob_folder(tmp_path / "a\0b", "*"), *safe_read.glob_folder(tmp_path / ("x" * 300), "*")] == []
    assert [safe_read.list_folder(tmp_path / path) for path in ("file", "none", "a\0b", "x" * 300)] == [[], [], [], []]


def test_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system answers is put in its place, as it refuses root nothing."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    assert safe_read.path_kind(tmp_path / "x") is None
    assert safe_read.list_folder(tmp_path) == []


def test_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    told = {"~/x": "/home/me/x", "~nosuchuser/x": "~nosuchuser/x", "x/~": "x/~", "/x": "/x"}
    assert {path: str(safe_read.expand_home(path)) for path in told} == told


def test_a_file_is_opened_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"a\r\n\x1a")
    with safe_read.open_file(tmp_path / "file") as stream:
        assert stream.read() == b"a\r\n\x1a"
    for error, name in ((OSError, "none"), (ValueError, "\0"), (safe_read.NoFileError, "pipe")):
        with pytest.raises(error):
            safe_read.open_file(tmp_path / name)
    monkeypatch.setattr(safe_read, "path_kind", lambda _path: "file")  # a pipe that came into a file's place
    with pytest.raises(safe_read.NoFileError, match="is a pipe, not a file"):
        safe_read.open_file(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("data/../chats.jsonl", "chats.jsonl"),
        ("data/../absent.jsonl", "absent.jsonl"),
        ("data/sub/../../chats.jsonl", "chats.jsonl"),
        ("data/sub/../x.jsonl", "data/x.jsonl"),
        ("link/../chats.jsonl", "link/../chats.jsonl"),  # which is data/chats.jsonl
        ("nowhere/../chats.jsonl", "nowhere/../chats.jsonl"),  # which the system does not find
        ("data/..", "data/.."),
        ("data/\0/../x.jsonl", "data/\0/../x.jsonl"),
        ("data/x.jsonl", "data/x.jsonl"),
    ],
)
def test_a_path_is_shown_without_a_detour(
    written: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/sub").mkdir(parents=True)
    Path("chats.jsonl").touch()
    Path("link").symlink_to("data/sub")
    assert str(safe_read.without_detour(Path(written))) == shown
