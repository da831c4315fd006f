"""`copy NAME DEST --data FILE` and `plan --data FILE`: a recipe on the user's own data that `check` passes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from support.program import run_to_exception as run

from validator.check import checking
from validator.errors import RecipeError
from validator.finding import Severity
from validator.recipe.recipe_file import load_recipe

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/plan/*"])

TALK = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
LABEL = {"prompt": "q", "completion": "a", "label": True}
TEXT = {"text": "words " * 4000}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, row: dict[str, Any], rows: int = 30) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(f"{json.dumps(row)}\n" * rows)


def errors(path: str) -> list[str]:
    return [d.message for d in checking.check_file(path).diagnostics if d.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("name", "row"),
    [("qwen7b-910b-lora", TALK), ("qwen3-8b-a100x1-lora-dpo", PAIR), ("qwen3-8b-a100-full-pt", TEXT)],
)
@pytest.mark.parametrize("dest", [".", "own", "own/mine.yaml"])
@pytest.mark.parametrize("data", ["my.jsonl", "data/my.jsonl", "../my.jsonl"])
def test_a_copy_trains_on_the_data(name: str, row: dict[str, Any], dest: str, data: str) -> None:
    write(data, row)
    found = run("copy", name, dest, "--data", data)
    assert found.exit_code == 0, found.exception
    recipe = dest if dest.endswith(".yaml") else f"{dest}/{name}.yaml"
    assert load_recipe(recipe).values["dataset"] == "my"
    assert load_recipe(recipe).header.get("rows", 30) == 30
    assert load_recipe(recipe).header["samples"] > 30
    assert f"note: `{data}` holds 30 rows, the recipe is made for" in found.stdout
    assert not errors(recipe)


@pytest.mark.parametrize(
    ("row", "stage"), [(TALK, "sft"), (PAIR, "dpo"), (LABEL, "kto"), (TEXT, "pt")], ids=["sft", "dpo", "kto", "pt"]
)
def test_a_plan_takes_stage_and_samples_from_the_data(row: dict[str, Any], stage: str) -> None:
    write("my.jsonl", row)
    found = run("plan", "--model", "qwen3-8b", "--machine", "8xa100-80g", "--data", "my.jsonl", "--write", "r.yaml")
    assert found.exit_code == 0, found.exception
    recipe = load_recipe("r.yaml")
    assert (recipe.values["dataset"], recipe.values["stage"]) == ("my", stage)
    assert recipe.header["samples"] > 30
    assert not errors("r.yaml")
    said = " ".join(found.stdout.split())
    assert ("490,000 blocks of 2,048 tokens" if stage == "pt" else "note: 30 samples: ") in said


def test_a_stage_that_takes_the_rows_may_be_asked_for() -> None:
    write("my.jsonl", PAIR)
    found = run("plan", "--model", "qwen3-8b", "--machine", "8xa100-80g", "--data", "my.jsonl", "--stage", "rm",
                "--write", "r.yaml")  # fmt: skip
    assert found.exit_code == 0, found.exception
    assert load_recipe("r.yaml").values["stage"] == "rm"
    assert not errors("r.yaml")


def test_what_to_type_next_names_the_data() -> None:
    write("my data.jsonl", TALK)
    found = run("plan", "--model", "qwen3-8b", "--machine", "8xa100-80g", "--data", "my data.jsonl")
    following = [line for line in found.stdout.splitlines() if ": lmf-recipes " in line]
    assert len(following) == 1
    assert "--data 'my data.jsonl'" in following[0]


@pytest.mark.parametrize(
    ("words", "row", "said"),
    [
        (["copy", "qwen3-8b-a100x1-lora", "."], PAIR, "which stage sft of `qwen3-8b-a100x1-lora` does not train; copy "
                                                      "`qwen3-8b-a100x1-lora-dpo`"),
        (["copy", "qwen3-8b-a100x1-lora-dpo", "."], TALK,
         "holds prompts with one answer, which stage dpo of `qwen3-8b-a100x1-lora-dpo` does not train; copy "
         "`qwen3-8b-a100x1-lora`"),
        (["copy", "qwen7b-910b-lora", "."], LABEL, "`lmf-recipes plan --model Qwen/Qwen2.5-7B-Instruct --machine "
                                                   "8xascend-910b-64g --data my.jsonl --write FILE.yaml`"),
        (["plan", "--machine", "8xa100-80g", "--stage", "sft"], PAIR,
         "holds preference pairs, which stage sft does not train; dpo does"),
        (["copy", "qwen7b-910b-lora", "."], {"x": 1}, "the columns x are of no known form"),
    ],
)  # fmt: skip
def test_data_of_another_kind_are_refused(words: list[str], row: dict[str, Any], said: str, here: Path) -> None:
    write("my.jsonl", row)
    found = run(*words, "--data", "my.jsonl")
    assert isinstance(found.exception, RecipeError)
    assert said in str(found.exception)
    assert [path.name for path in here.iterdir()] == ["my.jsonl"]


@pytest.mark.parametrize(
    ("file", "name"),
    [("a b,c.jsonl", "a_b_c"), ("2024.jsonl", "my_2024"), ("no.jsonl", "my_no"), ("数据.jsonl", "数据")],
)
def test_a_file_gets_a_name_that_a_recipe_can_hold(file: str, name: str) -> None:
    write(file, TALK)
    assert run("copy", "qwen7b-910b-lora", ".", "--data", file).exit_code == 0
    assert load_recipe("qwen7b-910b-lora.yaml").values["dataset"] == name
    assert not errors("qwen7b-910b-lora.yaml")


@pytest.mark.parametrize(
    ("data", "dest"), [("1e5.jsonl", "a #1.yaml"), ("null.jsonl", "1e5.yaml"), ("my.jsonl", "a\\d: b.yaml")]
)
def test_names_of_files_stay_text_in_a_copy(data: str, dest: str) -> None:
    write(data, TALK)
    assert run("copy", "qwen3-8b-4090x1-lora", dest, "--data", data).exit_code == 0
    values = load_recipe(dest).values
    assert values["dataset"] in (Path(data).stem, f"my_{Path(data).stem}")
    assert values["output_dir"] == f"saves/{Path(dest).stem}"


def test_a_deepspeed_file_takes_no_data() -> None:
    write("my.jsonl", TALK)
    found = run("copy", "ds_z2.json", ".", "--data", "my.jsonl")
    assert isinstance(found.exception, click.UsageError)
    assert not Path("deepspeed").exists()


def test_a_choice_of_models_goes_by_the_rows() -> None:
    write("my.jsonl", TALK, 20000)
    found = run("plan", "--machine", "8xa100-80g", "--data", "my.jsonl", "--write", "r.yaml")
    assert found.exit_code == 0, found.exception
    assert load_recipe("r.yaml").values["dataset"] == "my"
    assert not errors("r.yaml")


def test_an_entry_of_that_name_is_kept() -> None:
    write("my.jsonl", TALK)
    Path("data").mkdir()
    before = '{"my": {"hf_hub_url": "a/b"}}'
    Path("data/dataset_info.json").write_text(before)
    found = run("copy", "qwen7b-910b-lora", ".", "--data", "my.jsonl")
    assert "defines `my` for other data" in str(found.exception)
    assert Path("data/dataset_info.json").read_text() == before
    assert not Path("qwen7b-910b-lora.yaml").exists()


def test_a_data_set_of_the_catalogue_by_the_same_name_is_not_meant() -> None:
    write("alpaca_gpt4_en.jsonl", TALK)
    assert run("copy", "qwen7b-910b-lora", ".", "--data", "alpaca_gpt4_en.jsonl").exit_code == 0
    entries = json.loads(Path("data/dataset_info.json").read_text())
    assert [entry["file_name"] for entry in entries.values()] == ["../alpaca_gpt4_en.jsonl"]


@pytest.mark.parametrize(
    "words", [["copy", "qwen3-4b-2507-4090x1-lora", "."], ["plan", "--model", "qwen3-4b", "--machine", "1x48g"]]
)
def test_images_are_refused_for_a_model_that_takes_none(words: list[str], here: Path) -> None:
    write("shown.jsonl", {**TALK, "images": ["a.png"]})
    more = ["--write", "mine.yaml"] if words[0] == "plan" else []
    refused = run(*words, *more, "--data", "shown.jsonl").exception
    assert isinstance(refused, RecipeError)
    assert re.search(r"holds images, and Qwen/Qwen3-4B\S* takes none; choose a model for images", str(refused))
    assert [path.name for path in here.iterdir()] == ["shown.jsonl"]


def test_images_are_planned_for_a_model_that_takes_them() -> None:
    write("shown.jsonl", {**TALK, "images": ["a.png"]})
    assert run("plan", "--model", "google/gemma-3-4b-it", "--machine", "1x48g", "--data", "shown.jsonl").exit_code == 0


def test_no_length_is_recommended_where_films_count_too() -> None:
    turns = [{**TALK["messages"][0], "content": "<video>What is shown?"}, *TALK["messages"][1:]]
    write("shown.jsonl", {"messages": turns, "videos": ["a.mp4"]})
    Path("a.mp4").write_bytes(b"a film")
    run("plan", "--model", "qwen2.5-vl-3b", "--machine", "1xa100-80g", "--data", "shown.jsonl", "--write", "r.yaml")
    found = json.loads(run("data", "r.yaml", "--format", "json").stdout)
    assert (found["tokens"]["recommended_cutoff_len"], found["memory"]) == (None, None)
    text = run("data", "r.yaml", "--html", "r.html").stdout
    assert "would cut" not in text
    assert "tokens of videos are not counted" in text
    assert "Recommended" not in Path("r.html").read_text()


def test_pictures_that_no_registry_has_yet_are_counted_as_they_are(here: Path) -> None:
    """One a row, so that 16-bit weights fit; of rows that nobody has seen it would be tight."""
    write("shown.jsonl", {**TALK, "images": ["a.png"]})
    words = ["plan", "--model", "qwen2.5-vl-7b", "--machine", "2xrtx-4090", "--host-ram", "128", "--format", "json"]
    first = json.loads(run(*words, "--data", "shown.jsonl").stdout)["plans"][0]
    assert (first["method"], first["cutoff_len"]) == ("lora", 2048)
    assert not (here / "data").exists()


@pytest.mark.parametrize(
    ("data", "picture", "written"),
    [
        ("mine/shown.json", "mine/pictures/a.pgm", "media_dir: mine"),
        ("mine/shown.json", "elsewhere/pictures/a.pgm", "media_dir: elsewhere"),
        ("shown.json", "pictures/a.pgm", "media_dir: ."),  # found from this working directory alone
        ("data/shown.json", "data/pictures/a.pgm", ""),  # found in `dataset_dir`
        ("mine/shown.json", "", ""),
    ],
)
@pytest.mark.parametrize("command", ["copy", "plan"])
def test_the_folder_of_pictures_is_written_into_the_recipe(
    command: str, data: str, picture: str, written: str, here: Path
) -> None:
    for path in filter(None, (data, picture)):
        (here / path).parent.mkdir(parents=True, exist_ok=True)
    if picture:
        (here / picture).write_bytes(b"P5 640 480 255\n")
    turns = [{"role": "user", "content": "<image>q"}, {"role": "assistant", "content": "a"}]
    (here / data).write_text(json.dumps([{"messages": turns, "images": ["pictures/a.pgm"]}] * 20), "utf-8")
    words = ["copy", "qwen3-vl-8b-4090x2-lora", "mine.yaml"]
    if command == "plan":
        words = ["plan", "--model", "qwen3-vl-8b", "--machine", "2xrtx-4090", "--write", "mine.yaml"]
    found = run(*words, "--data", data)
    assert found.exit_code == (0 if picture else 1)
    assert ("run: lmf-recipes train" in found.stdout) == bool(picture)
    lines = [line for line in Path("mine.yaml").read_text().splitlines() if line.startswith("media_dir:")]
    assert lines == ([written] if written else [])
    assert bool(picture) != ("PTH121" in run("check", "mine.yaml").output)


def test_pictures_of_a_data_file_without_a_recipe_lie_beside_it(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "a.pgm").write_bytes(b"P5 640 480 255\n")
    turns = [{"role": "user", "content": "<image>q"}, {"role": "assistant", "content": "a"}]
    (here / "mine" / "shown.json").write_text(json.dumps([{"messages": turns, "images": ["a.pgm"]}]), "utf-8")
    found = json.loads(run("data", "mine/shown.json", "--model", "qwen3-vl-8b", "--format", "json").stdout)
    assert (found["problems"], found["images"]["per_epoch"]) == ([], 302)
