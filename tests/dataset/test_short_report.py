"""What `train` says of small local data before it hands the recipe over."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.program import path_without_devices

from validator import cli
from validator.recipe.recipe_file import load_recipe
from validator.run.assumptions import fitting_length
from validator.run.prediction import predict
from validator.run.settings import resolve

ROW: dict[str, Any] = {"instruction": "Say hi to all people.", "input": "", "output": "hi there"}


def train(folder: Path, rows: list[dict[str, Any]], *overrides: str, **keys: Any) -> Result:
    """`train --dry-run` of a recipe on these rows."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.jsonl"}}))
    recipe = {"model_name_or_path": "Qwen/Qwen3-8B", "template": "qwen3", "stage": "sft", "do_train": True,
              "finetuning_type": "lora", "dataset": "rows", "dataset_dir": str(folder),
              "output_dir": str(folder / "out"), **keys}  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    words = ["train", str(folder / "recipe.yaml"), *overrides, "--dry-run"]
    return CliRunner().invoke(cli.group, words, env={"PATH": path_without_devices(folder)})


def test_rows_steps_and_faults_are_told(tmp_path: Path) -> None:
    rows = [{**ROW, "instruction": f"Count to {n}."} for n in range(20)]
    rows += [rows[3], {**ROW, "output": None}, {**ROW, "output": "word " * 3000}]
    done = train(tmp_path, rows)
    assert done.exit_code == 0
    assert done.stdout.startswith("llamafactory-cli train ")
    told = [line for line in done.stderr.splitlines() if line.startswith("data: ")]
    assert told[0].startswith("data: 22 of 23 rows trained in 9 steps, about ")
    assert told[1:] == [
        f"data: 1 row dropped: no answer: null, missing, or not text ({tmp_path}/rows.jsonl:22)",
        f"data: exact duplicates: 1 (4.5%), such as {tmp_path}/rows.jsonl:21 like {tmp_path}/rows.jsonl:4",
        f"data: answers cut: 1 (4.5%), such as {tmp_path}/rows.jsonl:23; "
        "`cutoff_len: 3072` would cut at most one in 200",
    ]


def test_a_run_that_ends_within_the_first_epoch_trains_on_some_rows(tmp_path: Path) -> None:
    rows = [{**ROW, "instruction": f"Count to {n}."} for n in range(40)]
    done = train(tmp_path, rows, "max_steps=2", num_train_epochs=3)
    assert "\ndata: 16 of 40 rows trained in 2 steps, about " in done.stderr
    assert "[TRA015]" in done.stderr
    assert "fixable" not in done.stderr  # as the override is no line of the file


# Words of the answers, where 1 of so many is as long as the second number, and what is proposed.
CUTS: list[tuple[int, int, dict[str, Any], str]] = [
    (20, 3000, {}, "; `cutoff_len: 3072` would cut at most one in 200"),
    (20, 3000, {"cutoff_len": 1024}, "; `cutoff_len: 3072` would cut at most one in 200"),
    # one in three hundred: what cuts at most one in 200 is shorter than what is set
    (300, 3000, {}, ""),
    (300, 3000, {"cutoff_len": 2560}, ""),
    # the model reads no longer ones
    (20, 60000, {"cutoff_len": 40960, "per_device_train_batch_size": 1, "bf16": True}, ""),
    (20, 60000, {}, "; `cutoff_len: 40960` would cut fewer"),
]


@pytest.mark.parametrize(("rows", "words", "keys", "proposed"), CUTS)
def test_no_shorter_length_is_proposed_where_answers_are_cut(
    tmp_path: Path, rows: int, words: int, keys: dict[str, Any], proposed: str
) -> None:
    data = [{**ROW, "instruction": f"Count to {n}."} for n in range(rows - 1)]
    done = train(tmp_path, [*data, {**ROW, "output": "word " * words}], **keys)
    told = [line for line in done.stderr.splitlines() if "answers cut: 1 " in line]
    assert [line.partition(f"rows.jsonl:{rows}")[2] for line in told] == [proposed]


def test_a_length_with_which_the_run_does_not_fit_is_told(tmp_path: Path) -> None:
    """It is the length at which the verdict on memory turns."""
    data = [{**ROW, "instruction": f"Count to {n}."} for n in range(20)]
    train(tmp_path, [*data, {**ROW, "output": "word " * 7000}], bf16=True, per_device_train_batch_size=1,
          enable_liger_kernel=True)  # fmt: skip
    text = (tmp_path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(f"# /// recipe\n# machine: 1xrtx-4090\n# ///\n{text}")
    recipe = load_recipe(str(tmp_path / "recipe.yaml"))
    run = resolve(recipe)
    fits = fitting_length(run, 7168)
    assert fits
    assert predict(run).verdict == "fits"
    told = CliRunner().invoke(cli.group, ["data", str(tmp_path / "recipe.yaml")]).stdout
    assert "`cutoff_len: 7168` would cut at most one in 200, but this run fits up to " in told
    assert f" up to {fits // 100 * 100:,} tokens a sample; `lmf-recipes explain RECIPE cutoff_len=7168`" in told
    assert predict(run.updated({"cutoff_len": fits})).verdict == "fits"
    assert predict(run.updated({"cutoff_len": fits + fits // 20})).verdict != "fits"


def test_data_at_which_the_run_stops_end_it_before(tmp_path: Path) -> None:
    """In a row beyond those that `check` looks at."""
    done = train(tmp_path, [*[ROW] * 2000, {**ROW, "instruction": ["a"]}])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "`instruction` is a list at" in done.stderr


def test_of_data_elsewhere_nothing_is_said(tmp_path: Path) -> None:
    done = train(tmp_path, [ROW], dataset_dir={"hub": {"hf_hub_url": "a/b"}}, dataset="hub")
    assert done.exit_code == 0
    assert "data: " not in done.stderr


def test_small_files_that_are_large_unpacked_are_left_alone(tmp_path: Path) -> None:
    done = train(tmp_path, [ROW])
    assert "data: 1 of 1 rows" in done.stderr
    with gzip.open(tmp_path / "rows.jsonl", "wb") as stream:
        for _ in range(40):
            stream.write(bytes(1 << 20))
    words = ["train", str(tmp_path / "recipe.yaml"), "--dry-run"]
    done = CliRunner().invoke(cli.group, words, env={"PATH": path_without_devices(tmp_path)})
    assert done.exit_code == 0
    assert "data: " not in done.stderr
