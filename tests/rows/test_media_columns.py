"""Pictures, films and sound of rows: what of them ends a run, in `data` and for the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator import cli
from validator.rows.converter import Sample
from validator.rows.dataset_attr import DatasetAttr
from validator.rows.media_columns import (
    MediaFault,
    MediaSupport,
    media_fault,
    media_paths,
    missing_media_files,
    missing_media_remedy,
)

ENTRY = {"columns": {"prompt": "q", "response": "a", "images": "images", "videos": "videos"}}
PICTURE = b"P5 640 480 255\n"
SEEING = frozenset({"image", "video"})


UNKNOWN = "add it there, or set `media_dir` to the folder that holds it"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.png").write_bytes(PICTURE)
    (tmp_path / "two.png").write_bytes(PICTURE)
    return tmp_path


@pytest.mark.parametrize(
    ("value", "lost"),
    [
        (None, []), ([], []), ("one.png", []), (["one.png", "two.png"], []), (["three.png"], ["three.png"]),
        ([["one.png", "four.png"]], ["four.png"]), ([{"path": "one.png", "bytes": None}], []),
        ("x" * 5000, ["x" * 5000]),
    ],
)  # fmt: skip
def test_files_are_looked_for_in_the_folder_and_in_the_working_directory(value: object, lost: list[str]) -> None:
    assert list(missing_media_files(value, "data")) == lost


def test_frames_of_a_film_are_files() -> None:
    assert list(media_paths([["a.png", "b.png"], ["c.png"]])) == ["a.png", "b.png", "c.png"]


@pytest.mark.parametrize(
    ("question", "row", "kinds", "said"),
    [
        ("<image>what?", {"images": ["one.png"]}, SEEING, ""),
        ("what?", {"images": None}, SEEING, ""),
        ("what?", {"images": ["one.png"]}, SEEING, "it has 1 images and 0 <image> in its turns; write one for each"),
        ("<video>what?", {}, SEEING, "it has 0 videos and 1 <video> in its turns; write one for each"),
        ("<audio>what?", {}, SEEING, "it has 0 audios and 1 <audio> in its turns; write one for each"),
        ("<image>what?", {}, frozenset(), ""),
        ("what?", {"images": []}, frozenset(), ""),
        ("what?", {"images": ["one.png"]}, frozenset(), "it holds images, which template qwen does not take"),
        ("what?", {"images": ["one.png"]}, frozenset({"audio"}), "it holds images, which template qwen does not take"),
        ("<image>what?", {"images": ["gone.png"]}, SEEING, "`gone.png` is not in `data`"),
    ],
)
def test_what_ends_the_run(question: str, row: dict[str, Any], kinds: frozenset[str], said: str) -> None:
    sample = Sample([("user", question)], [("assistant", "that")])
    found = media_fault(DatasetAttr.from_entry(ENTRY), MediaSupport(kinds, "data", "qwen"), row, sample)
    assert (found or MediaFault("")).message == said


@pytest.mark.parametrize(
    ("path", "lies", "said"),
    [
        ("images/a.png", "mine/images/a.png", "set `media_dir: mine`"),
        ("images/a.png", "images/a.png", "set `media_dir: .`"),
        ("a.png", "mine/deep/a.png", "set `media_dir: mine/deep`"),
        (
            "coco/a.png",
            "mine/images/a.png",
            "`mine/images` holds a file of this name: write `a.png` in the data, and set `media_dir: mine/images`",
        ),
        ("a.png", "elsewhere/far/too/deep/a.png", UNKNOWN),
        ("a.png", "", UNKNOWN),
        ("/root/a.png", "a.png", "write paths relative to a folder, and set `media_dir` to that folder"),
        ("x" * 5000, "a.png", UNKNOWN),
    ],
)
def test_the_folder_that_would_find_a_missing_file_is_named(path: str, lies: str, said: str, folder: Path) -> None:
    if lies:
        (folder / lies).parent.mkdir(parents=True, exist_ok=True)
        (folder / lies).write_bytes(PICTURE)
    assert missing_media_remedy([path], 1, (Path("data"), Path())) == said


@pytest.mark.parametrize(
    ("missing", "total", "said"),
    [
        (["a.png"], 400, "add the file, or remove the row"),  # although `mine` has it
        (["a.png", "b.png"], 4, "add the files, or remove the rows"),
        (["a.png", "b.png"], 3, "set `media_dir: mine`"),
        (["a.png", "c.png", "d.png"], 3, "add them there"),  # `mine` has one of the three
    ],
)
def test_another_folder_is_named_only_where_it_finds_most(
    missing: list[str], total: int, said: str, folder: Path
) -> None:
    (folder / "mine").mkdir()
    for name in ("a.png", "b.png"):
        (folder / "mine" / name).write_bytes(PICTURE)
    assert missing_media_remedy(missing, total, (Path("data"), Path())).startswith(said)


def studied(rows: list[dict[str, Any]], template: str) -> str:
    entry = {"seen": {"file_name": "seen.json", **ENTRY}}
    Path("data/seen.json").write_text(json.dumps([{"videos": [], **row} for row in rows]), "utf-8")
    Path("data/dataset_info.json").write_text(json.dumps(entry), "utf-8")
    lines = ("model_name_or_path: Qwen/Qwen2-VL-2B-Instruct", "stage: sft", "do_train: true", "dataset: seen",
             f"template: {template}", "finetuning_type: lora")  # fmt: skip
    Path("recipe.yaml").write_text("\n".join(lines), "utf-8")
    return CliRunner().invoke(cli.group, ["data", "recipe.yaml"]).output


@pytest.mark.parametrize(
    ("second", "template", "said"),
    [
        ({"q": "<image>two?", "a": "b", "images": ["one.png"]}, "qwen2_vl", "2 trained"),
        (
            {"q": "<image>two?", "a": "b", "images": ["gone.png"]},
            "qwen2_vl",
            "seen.json: error: `gone.png` is not in `data` (files are missing in 1 of 2 rows); LLaMA-Factory stops; "
            "add the file, or remove the row",
        ),
        (
            {"q": "two?", "a": "b", "images": ["one.png"]},
            "qwen2_vl",
            "seen.json: error: it has 1 images and 0 <image>",
        ),
        (
            {"q": "<image>two?", "a": "b", "images": ["one.png"]},
            "qwen",
            "seen.json: error: it holds images, which template qwen does not take",
        ),
    ],
)
def test_data_looks_at_every_row(second: dict[str, Any], template: str, said: str) -> None:
    first = {"q": "<image>one?", "a": "b", "images": ["one.png"]}
    assert said in studied([first, second], template)
