"""Images in `data`: what makes two samples the same, and the tokens, memory and time that images add."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from validator import cli

pytest.importorskip("orjson")
KEYS = {"model_name_or_path": "Qwen/Qwen2-VL-2B-Instruct", "template": "qwen2_vl", "stage": "sft", "do_train": True,
        "finetuning_type": "lora", "dataset": "seen", "output_dir": "out", "bf16": True}  # fmt: skip
TEXTS = ("What is this?", "How many?", "Where?")


def picture(number: int, width: int = 640, height: int = 480) -> bytes:
    return b"P5 %d %d 255\n" % (width, height) + bytes([number % 256, number // 256]) * 50


def row(number: int, path: str, **more: Any) -> dict[str, Any]:
    question = f"<image>{TEXTS[number % len(TEXTS)]}"
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "A board of squares."}]
    return {"messages": turns, "images": [path], **more}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()


def report(rows: list[dict[str, Any]], pictures: dict[str, bytes], **keys: Any) -> dict[str, Any]:
    """The answer of `data` for rows and the files beside them."""
    for name, content in pictures.items():
        Path("data", name).write_bytes(content)
    Path("data/seen.json").write_text(json.dumps(rows), "utf-8")
    names = {"messages": "messages", "images": "images", **({"videos": "videos"} if "videos" in rows[0] else {})}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    entry = {"file_name": "seen.json", "formatting": "sharegpt", "columns": names, "tags": tags}
    Path("data/dataset_info.json").write_text(json.dumps({"seen": entry}), "utf-8")
    Path("recipe.yaml").write_text(
        "# /// recipe\n# machine: 1xa100-80g\n# ///\n" + "".join(f"{k}: {v}\n" for k, v in {**KEYS, **keys}.items())
    )
    found: dict[str, Any] = json.loads(
        CliRunner().invoke(cli.group, ["data", "recipe.yaml", "--format", "json"]).stdout
    )
    return found


def duplicates(found: dict[str, Any]) -> dict[str, int]:
    return {one["kind"]: one["rows"] for one in found["quality"]}


def test_different_images_under_the_same_texts_are_different_samples() -> None:
    found = report([row(i, f"{i}.pgm") for i in range(60)], {f"{i}.pgm": picture(i) for i in range(60)})
    assert duplicates(found) == {}
    assert found["amount"]["rows"] == 60


@pytest.mark.parametrize(
    ("second", "same"),
    [
        (row(0, "a.pgm"), True),  # the same file
        (row(0, "copy.pgm"), True),  # a file of equal content
        (row(0, "b.pgm"), False),
        (row(1, "a.pgm"), False),
        (row(0, "longer.pgm"), False),
    ],
)
def test_a_duplicate_has_the_same_text_and_the_same_images(second: dict[str, Any], same: bool) -> None:
    pictures = {"a.pgm": picture(1), "copy.pgm": picture(1), "b.pgm": picture(2), "longer.pgm": picture(1) + b"\0"}
    found = report([row(0, "a.pgm"), second], pictures)
    assert duplicates(found).get("exact duplicates", 0) == same


def test_large_files_differ_by_their_size_beginning_and_end() -> None:
    middle = bytes(200_000)
    pictures = {"a.pgm": picture(1) + middle + b"1", "b.pgm": picture(1) + middle + b"2"}
    assert duplicates(report([row(0, "a.pgm"), row(0, "b.pgm")], pictures)) == {}


def test_images_count_in_tokens_memory_and_time() -> None:
    rows = [row(i, f"{i % 4}.pgm") for i in range(40)]
    small = report(rows, {f"{i}.pgm": picture(i, 56, 56) for i in range(4)})
    large = report(rows, {f"{i}.pgm": picture(i) for i in range(4)})
    assert small["images"] == {"images": 40, "rows": 40, "per_epoch": 240, "mean": 6, "longest": 6, "rows_over": 0}
    assert large["images"]["mean"] == 393
    assert large["tokens"]["per_epoch"] - small["tokens"]["per_epoch"] == 40 * (393 - 6)
    assert large["memory"]["longest_gib"] > small["memory"]["longest_gib"]
    assert large["time"]["hours"]["expected"] > small["time"]["hours"]["expected"]
    assert not any("not counted" in note for note in large["notes"])


def test_image_max_pixels_bounds_the_tokens() -> None:
    rows, pictures = [row(0, "a.pgm")], {"a.pgm": picture(1, 4000, 3000)}
    whole = report(rows, pictures)["images"]["mean"]
    assert report(rows, pictures, image_max_pixels=100_000)["images"]["mean"] < whole / 5


def test_images_longer_than_what_cutoff_len_leaves_are_told() -> None:
    found = report([row(0, "a.pgm")], {"a.pgm": picture(1)}, cutoff_len=100)
    assert found["images"]["rows_over"] == 1
    assert duplicates(found)["images cut"] == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "`a.pgm` is a Git LFS pointer"),
        (b"", "`a.pgm` is empty"),
        (b"<!DOCTYPE html><html></html>", "`a.pgm` is a web page"),
        (picture(1, 1, 9_000_000), "the processor refuses an image of 1 x 9,000,000 pixels"),
    ],
)
def test_files_that_end_the_run(content: bytes, said: str) -> None:
    (problem,) = report([row(0, "a.pgm")], {"a.pgm": content})["problems"]
    assert said in problem["message"]


def test_an_image_of_an_unknown_kind_counts_as_the_largest() -> None:
    found = report([row(0, "a.pgm"), row(1, "b.pgm")], {"a.pgm": b"\0\0\0 ftypheic", "b.pgm": picture(1)})
    assert found["images"]["longest"] == 731
    assert any("the size of 1 image is not known (" in note and "seen.json:1" in note for note in found["notes"])


def test_media_that_are_not_counted_are_named() -> None:
    film = {"messages": row(0, "")["messages"], "images": ["a.pgm"], "videos": ["f.mp4"]}
    film["messages"] = [{"role": "user", "content": "<image><video>What?"}, *film["messages"][1:]]
    found = report([film], {"a.pgm": picture(1), "f.mp4": b"1"})
    assert found["notes"][1].startswith("tokens of videos are not counted")
    assert found["time"] is None
    other = report(
        [row(0, "a.pgm")], {"a.pgm": picture(1)}, model_name_or_path="Kwai-Keye/Keye-VL-8B-Preview", template="keye_vl"
    )
    assert other["notes"][1] == (
        "tokens of images are not counted: how the processor of Keye resizes images is not known; with them samples are"
        " longer"
    )
    assert other["images"] is None
