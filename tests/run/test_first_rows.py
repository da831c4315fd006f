"""How long the longest sample is at least, by the first rows of the recipe's own data."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from validator.recipe.recipe_file import Document
from validator.run.first_rows import certain_tokens
from validator.run.settings import resolve

SHORT = {"instruction": "What is ZeRO?", "output": "A way to shard states."}
WORDS = "word and more words " * 1000  # some 4,000 tokens
PAIRS = {"ranking": True, "columns": {"prompt": "instruction", "chosen": "a", "rejected": "b"}}


def longest(folder: Path, rows: list[dict[str, Any]], entry: dict[str, Any] | None = None, **keys: Any) -> int:
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text(json.dumps({"mine": {"file_name": "rows.json", **(entry or {})}}))
    values = {"model_name_or_path": "Qwen/Qwen3-8B", "template": "qwen3", "dataset": "mine", "dataset_dir": str(folder),
              "cutoff_len": 8192, **keys}  # fmt: skip
    return certain_tokens(resolve(Document(str(folder / "x.yaml"), values=values)))


def test_one_long_row_is_enough(tmp_path: Path) -> None:
    assert longest(tmp_path, [SHORT] * 5) == 512
    assert 3200 < longest(tmp_path, [*[SHORT] * 5, {**SHORT, "output": WORDS}]) < 4200


def test_no_sample_is_longer_than_the_length_to_which_it_is_cut(tmp_path: Path) -> None:
    assert longest(tmp_path, [{**SHORT, "output": WORDS}], cutoff_len=1024) == 1024


def test_columns_that_are_not_trained_on_do_not_count(tmp_path: Path) -> None:
    assert longest(tmp_path, [{**SHORT, "source": WORDS}]) == 512


def test_a_pair_is_as_long_as_its_prompt_with_the_longer_answer(tmp_path: Path) -> None:
    pair = {"instruction": "Say it.", "a": WORDS, "b": WORDS}
    assert 3200 < longest(tmp_path, [pair], PAIRS, stage="dpo") < 4200


@pytest.mark.parametrize("keys", [{"stage": "pt"}, {"dataset": "other"}])
def test_what_cannot_be_measured_has_the_usual_length(keys: dict[str, Any], tmp_path: Path) -> None:
    assert longest(tmp_path, [{**SHORT, "output": WORDS}], packing=False, **keys) == 512


def test_each_data_set_is_sampled_by_its_share_of_the_rows(tmp_path: Path) -> None:
    for name, number in (("few", 10), ("many", 990)):
        (tmp_path / f"{name}.json").write_text(json.dumps([SHORT] * number))
    (tmp_path / "dataset_info.json").write_text(
        json.dumps({name: {"file_name": f"{name}.json"} for name in ("few", "many")})
    )
    values = {"dataset": "few,many", "dataset_dir": str(tmp_path)}
    data = resolve(Document(str(tmp_path / "x.yaml"), values=values)).data
    assert Counter(dataset.name for dataset, _ in data.sampled_rows) == {"few": 5, "many": 495}
    assert data.sampled_in_words == "the first 500 of 1,000 rows"
