"""Lengths and times of runs on images, by the sizes of the images that the first rows name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from validator.run.row_images import first_row_images, usual_tower_tokens
from validator.run.sample_lengths import estimate_sample_lengths
from validator.run.settings import RunSettings, run_of_values
from validator.run.workspace import Workspace

ENTRY = {"file_name": "seen.json", "columns": {"prompt": "q", "response": "a", "images": "images", "videos": "videos"}}
KEYS = {"model_name_or_path": "Qwen/Qwen2-VL-2B-Instruct", "template": "qwen2_vl", "stage": "sft",
        "finetuning_type": "lora", "dataset": "seen", "dataset_dir": "data"}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_on(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> RunSettings:
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "small.pgm").write_bytes(b"P5 56 56 255\n")
    (folder / "data" / "large.pgm").write_bytes(b"P5 640 480 255\n")
    (folder / "data" / "odd.pgm").write_bytes(b"?")
    (folder / "data" / "seen.json").write_text(json.dumps(rows), "utf-8")
    (folder / "data" / "dataset_info.json").write_text(json.dumps({"seen": ENTRY}), "utf-8")
    return run_of_values({**KEYS, **keys}, workspace=Workspace("recipe.yaml", (folder,)))


def row(*images: str, **more: Any) -> dict[str, Any]:
    return {"q": "<image>" * len(images) + "?", "a": "this", "images": [*images], **more}


@pytest.mark.parametrize(
    ("rows", "tower"),
    [
        ([row("small.pgm")], 16),
        ([row("large.pgm")], 1564),
        ([row("small.pgm"), row("large.pgm")], 790),
        ([row("small.pgm", "small.pgm"), row()], 16),
        ([row("small.pgm")] * 5000, 16),
        ([row("gone.pgm")], None),
        ([row("small.pgm"), row("odd.pgm")], None),
        ([row("small.pgm", videos=["film.mp4"])], None),
        ([row()], 0),
    ],
)
def test_tower_tokens_of_a_usual_row(rows: list[dict[str, Any]], tower: int | None, tmp_path: Path) -> None:
    assert usual_tower_tokens(run_on(tmp_path, rows)) == tower


def test_lengths_are_those_of_texts_and_images(tmp_path: Path) -> None:
    small, large = (estimate_sample_lengths(run_on(tmp_path, [row(f"{size}.pgm")] * 10)) for size in ("small", "large"))
    assert large.lengths[1][0] - small.lengths[1][0] == 393 - 6
    assert "estimated from all 10 rows" in large.assumed[0]
    assert not large.guessed


def test_a_few_rows_are_looked_at(tmp_path: Path) -> None:
    assert len(first_row_images(run_on(tmp_path, [row("small.pgm")] * 999))) == 500


def test_a_model_that_is_not_known_has_no_lengths(tmp_path: Path) -> None:
    assert not first_row_images(run_on(tmp_path, [row("small.pgm")], model_name_or_path="somebody/unheard-of"))
