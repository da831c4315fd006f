"""All commands are asked about the same data, and say the same numbers of rows, samples and steps."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from validator.cli import group
from validator.recipe.recipe_file import load_recipe
from validator.run.settings import resolve

RECIPE = "qwen3-8b-4090x2-lora"
COUNTING = ["validator/run/*count*.py", "validator/run/data_*.py", "validator/dataset/row_selection.py"]


def rows(count: int, words: int = 40) -> list[dict[str, str]]:
    return [
        {"instruction": f"What is {n}, in some words?", "input": "", "output": f"{n}: " + "a word, " * (n * 7 % words)}
        for n in range(count)
    ]


def _json_lines(count: int) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows(count)).encode()


def _csv(count: int) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, ["instruction", "input", "output"])
    writer.writeheader()
    writer.writerows({**row, "output": f'{row["output"]}\n"quoted"'} for row in rows(count))
    return stream.getvalue().encode()


def _arrow(count: int) -> bytes:
    stream, table = io.BytesIO(), pa.Table.from_pylist(rows(count))
    with pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def _parquet(count: int) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows(count)), stream, row_group_size=100)
    return stream.getvalue()


FILES: dict[str, Callable[[int], bytes]] = {
    "list.json": lambda count: json.dumps(rows(count)).encode(),
    "indented.json": lambda count: json.dumps(rows(count), indent=2).encode(),
    "lines.jsonl": _json_lines,
    "table.csv": _csv,
    "table.parquet": _parquet,
    "table.arrow": _arrow,
    "packed.jsonl": lambda count: gzip.compress(_json_lines(count)),
    "text.txt": lambda count: "".join(f"line {n} of a text. " * 60 + "\n" for n in range(count)).encode(),
}


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(group, words)
    assert done.exit_code == code, done.output
    return done.output


def dry_run(recipe: str) -> str:
    """What `train --dry-run` says, also where a package is missing, for which the start would be refused."""
    return CliRunner().invoke(group, ["train", recipe, "--dry-run"]).output


def answer(*words: str) -> Any:
    return json.loads(CliRunner().invoke(group, [*words, "--format", "json"]).stdout)


def assert_alike(recipe: str, read: int | None = None) -> None:
    """`explain` has the samples and steps that `data`, which reads every row, finds; what is no count says so."""
    counted, time = answer("data", recipe), answer("explain", recipe)["time"]
    samples, steps = time["samples"], counted["steps"]
    assert read in (None, counted["rows"]["read"])
    assert not counted["problems"]
    if samples["exact"]:
        assert (samples["train"], samples["held_back"]) == (counted["rows"]["trained"], counted["rows"]["evaluated"])
    if samples["steps_exact"]:
        assert time["steps"] == steps["total"]
    else:
        assert time["steps"] == pytest.approx(steps["total"], rel=0.25, abs=3)
    assert samples["epochs"] == pytest.approx(steps["epochs"], rel=0.001)
    about = "" if samples["steps_exact"] else "about "
    assert f": {about}{time['steps']:,} steps" in run("explain", recipe)


@pytest.mark.sample(one_in=3, whole_for=COUNTING)
@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("list.json", 500),
        ("list.json", 15_000),
        ("indented.json", 3_000),
        ("lines.jsonl", 30_000),
        ("table.csv", 2_000),
        ("table.csv", 12_000),
        ("table.parquet", 1_200),
        ("table.arrow", 700),
        ("packed.jsonl", 900),
        ("packed.jsonl", 20_000),
    ],
)
def test_a_file_has_one_number_of_rows_for_all_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file).write_bytes(FILES[file](count))
    copied = " ".join(run("copy", RECIPE, "mine.yaml", "--data", file).split())
    assert f"# rows: {count} " in Path("mine.yaml").read_text()
    assert count >= 20_000 or f"`{file}` holds {count:,} rows, the recipe is made for 20,000" in copied
    assert f"of {count:,} rows trained in " in copied
    assert_alike("mine.yaml", count)
    dry = dry_run("mine.yaml")
    steps = answer("data", "mine.yaml")["steps"]["total"]
    assert f"of {count:,} rows trained in {steps:,} steps" in dry
    planned = answer("plan", "--model", "qwen3-8b", "--machine", "2xrtx-4090", "--data", file)
    assert {planned["samples"], *(each["samples"] for each in planned["plans"])} == {count}
    assert [each for each in answer("check", "mine.yaml")["files"][0]["diagnostics"] if each["code"] == "DAT001"] == []


def test_plan_and_a_dry_run_count_as_data_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short tokens, of which texts have three times as many as by their characters; dropped rows, which come late."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(Path(__file__).parents[2] / "demo/tiny-qwen3", "model")
    held = [{**row, "output": "" if n > 500 and n % 3 else row["output"]} for n, row in enumerate(rows(790))]
    Path("mine.json").write_text(json.dumps(held))
    planned = run("plan", "--model", "./model", "--machine", "1xrtx-3090", "--data", "mine.json", "--write", "r.yaml")
    steps, tokens = answer("data", "r.yaml")["steps"]["total"], answer("data", "r.yaml")["tokens"]
    assert f"expected for 790 samples in {steps} steps" in planned
    assert f"the longest has up to {tokens['longest']:,} tokens" in planned
    assert "answers cut" not in planned
    assert "times are for" not in planned
    time = next(line for line in dry_run("r.yaml").splitlines() if line.startswith("time "))
    assert time.endswith(f" {steps} steps")


REGISTRY = {
    "one": {"file_name": "one.json"},
    "two": {"file_name": "two.jsonl"},
    "drawn": {"file_name": "two.jsonl", "num_samples": 333},
    "repeated": {"file_name": "one.json", "num_samples": 1_500},
    "part": {"file_name": "two.jsonl", "split": "train[10%:60%]"},
    "first": {"file_name": "one.json", "split": "train[:77]"},
    "folder": {"file_name": "folder"},
}
HEAD = """# /// recipe
# machine: 2xa100-80g
# ///
model_name_or_path: Qwen/Qwen3-8B
stage: sft
do_train: true
finetuning_type: lora
template: qwen3
output_dir: saves/x
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
num_train_epochs: 3.0
"""


@pytest.mark.sample(one_in=4, whole_for=COUNTING)
@pytest.mark.parametrize(
    "settings",
    [
        "dataset: one",
        "dataset: one,two",
        "dataset: one,two\nmax_samples: 800",  # for each data set: all of one, a part of two
        "dataset: drawn",
        "dataset: drawn\nmax_samples: 100",
        "dataset: repeated",
        "dataset: repeated,two\nmax_samples: 1000",
        "dataset: part",
        "dataset: first,part\nval_size: 0.013",
        "dataset: folder\nval_size: 7",
        "dataset: one\nval_size: 0.013",
        "dataset: one\nval_size: 1",
        "dataset: one,two\nval_size: 0.1\nmax_samples: 501",
        "dataset: one\neval_dataset: two",
        "dataset: one\neval_dataset: two\nmax_samples: 50",
        "dataset: one,two\nmix_strategy: interleave_under",
        "dataset: one,two\nmix_strategy: interleave_over",
        "dataset: one,two\nmix_strategy: interleave_under\ninterleave_probs: 0.7,0.3",
        "dataset: one,two\nmix_strategy: interleave_over\ninterleave_probs: 0.5,0.5\nval_size: 0.05",
        "dataset: one,two\npacking: true\ncutoff_len: 1024",
        "dataset: two\nneat_packing: true\ncutoff_len: 2048\nval_size: 0.02",
        "dataset: two\nmax_steps: 77",
        "dataset: one,two\ngradient_accumulation_steps: 5\nnum_train_epochs: 1.5",
    ],
)
def test_settings_choose_the_same_rows_for_all_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data/folder").mkdir(parents=True)
    Path("data/dataset_info.json").write_text(json.dumps(REGISTRY))
    Path("data/one.json").write_text(json.dumps(rows(602)))
    Path("data/two.jsonl").write_bytes(_json_lines(2_411))
    for name in ("a.jsonl", "b.jsonl"):
        Path("data/folder", name).write_bytes(_json_lines(150))
    keys = [line.partition(":")[0] for line in settings.splitlines()]
    kept = [line for line in HEAD.splitlines() if line.partition(":")[0] not in keys]
    Path("mine.yaml").write_text("\n".join([*kept, settings, ""]))
    assert_alike("mine.yaml")


def test_rows_that_are_dropped_are_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    some = [row if n % 4 else {**row, "output": None} for n, row in enumerate(rows(4_000))]
    Path("some.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some))
    run("copy", RECIPE, "mine.yaml", "--data", "some.jsonl")
    assert_alike("mine.yaml", 4_000)
    samples = answer("explain", "mine.yaml")["time"]["samples"]
    assert not samples["exact"]
    assert samples["train"] == pytest.approx(3_000, rel=0.03)


def test_pretraining_text_counts_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_bytes(FILES["text.txt"](5_000))
    run("copy", "qwen3-8b-a100-full-pt", "mine.yaml", "--data", "text.txt")
    assert_alike("mine.yaml", 5_000)


def test_samples_beside_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "few.json").write_text(json.dumps(rows(500)))
    words = ("plan", "--model", "qwen3-8b", "--machine", "1xrtx-4090", "--data", str(tmp_path / "few.json"))
    assert "holds 500 rows, and with --data the plan is for these; leave out --samples" in run(
        *words, "--samples", "22000", code=2
    )


def test_a_planned_recipe_states_the_rows_that_its_hours_are_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.json").write_text(json.dumps(rows(500)))
    words = ("plan", "--model", "qwen3-8b", "--machine", "1xrtx-4090", "--data", "few.json")
    said = " ".join(run(*words, "--write", "mine.yaml").split())
    steps = answer("explain", "mine.yaml")["time"]["steps"]
    assert f"expected for 500 samples in {steps} steps" in said
    header = Path("mine.yaml").read_text().partition("# predicted")[0]
    assert header.endswith(
        "# samples: 20000  # recommended; yours are the rows below\n"
        "# rows: 500  # of the data set; the hours are for these\n"
    )
    assert resolve(load_recipe("mine.yaml")).declared.samples == 20000
    assert_alike("mine.yaml", 500)


def test_the_data_beside_the_recipe_are_those_that_train_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, count in (("mine", 640), ("other", 20)):
        (tmp_path / folder / "data").mkdir(parents=True)
        (tmp_path / folder / "data" / "chats.json").write_text(json.dumps(rows(count)))
        (tmp_path / folder / "data" / "dataset_info.json").write_text('{"chats": {"file_name": "chats.json"}}')
    (tmp_path / "mine" / "mine.yaml").write_text(f"{HEAD}dataset: chats\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text('{"chats": {"file_name": "../other/data/chats.json"}}')
    for place, recipe in (("mine", "mine.yaml"), ("other", "../mine/mine.yaml"), (".", "mine/mine.yaml")):
        monkeypatch.chdir(tmp_path / place)
        assert_alike(recipe, 640)
        command = dry_run(recipe).splitlines()[-1]
        assert f"dataset_dir={tmp_path}/mine/data" in command
        told = "the working directory has another" in run("check", recipe)
        assert told is (place != "mine")
