"""What `train` says of small local data before it hands the recipe over."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from support.program import path_without_devices

from validator import cli

ROW: dict[str, Any] = {"instruction": "Say hi to all people.", "input": "", "output": "hi there"}


def train(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> Result:
    """`train --dry-run` of a recipe on these rows."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.jsonl"}}))
    recipe = {"model_name_or_path": "Qwen/Qwen3-8B", "template": "qwen3", "stage": "sft", "do_train": True,
              "finetuning_type": "lora", "dataset": "rows", "dataset_dir": str(folder),
              "output_dir": str(folder / "out"), **keys}  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    words = ["train", str(folder / "recipe.yaml"), "--dry-run"]
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
