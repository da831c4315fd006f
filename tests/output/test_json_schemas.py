"""The JSON Schemas of docs/reference/json/: every answer of `--format json` is as its schema says."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from support.clean_recipe import RECIPE

from validator.cli import group

pytestmark = [
    pytest.mark.usefixtures("from_the_root"),
    pytest.mark.sample(one_in=3, whole_for=["docs/reference/json/*", "validator/output/*", "validator/commands/*"]),
]

ROOT = Path(__file__).parents[2]
BAD = RECIPE.replace("stage: sft", "stage: SFT") + "lora_r: 16\n"


@cache
def schema(name: str) -> Any:
    return json.loads((ROOT / f"docs/reference/json/{name}.schema.json").read_text("utf-8"))


def assert_valid(name: str, words: list[str]) -> Any:
    """Ask the program, hold its answer to the schema, and return it."""
    done = CliRunner().invoke(group, [*words, "--format", "json"])
    answer = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema(name)).validate(answer)
    return answer


@pytest.mark.parametrize("name", [path.name.partition(".")[0] for path in ROOT.glob("docs/reference/json/*.json")])
def test_each_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("check", "recipes/tiny-cpu-lora.yaml recipes/qwen3-8b-a100-full.yaml deepspeed/ds_z3.json none.yaml"),
        ("check", "recipes/qwen3-8b-a100-full.yaml --machine 1xrtx-4090"),
        ("explain", "qwen32b-910b-lora --network roce-100g --price 1.10USD"),
        ("explain", "qwen3-4b-2507-3090x1-lora cutoff_len=8192 per_device_train_batch_size=8 --energy"),
        ("explain", "qwen3-235b-a22b-h100x16-lora cutoff_len=4096"),
        ("explain", "qwen3-vl-8b-4090x2-lora"),
        ("explain", "tiny-cpu-lora"),
        ("plan", "--model qwen3-8b --machine 2xrtx-4090 --host-ram 128 --scale --price 1USD"),
        ("plan", "--model qwen72b --machine 1xt4-16g"),
        ("plan", "--model qwen3-8b --machine 1x48g"),
        ("plan", "--machine 1xrtx-3090 --samples 20000"),
        ("list", ""),
        ("data", "data/tiny_demo.json"),
        ("data", "tiny-cpu-lora"),
        ("diff", "qwen3-8b-4090x1-lora qwen3-8b-4090x2-lora"),
        pytest.param("doctor", "", marks=pytest.mark.slow),
        pytest.param("doctor", "tiny-cpu-lora", marks=pytest.mark.slow),
    ],
)
def test_an_answer_is_as_its_schema_says(name: str, words: str) -> None:
    assert_valid(name, [name, *words.split()])


def test_findings_with_fixes_are_as_the_schema_says(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    before = assert_valid("check", ["check", str(tmp_path / "bad.yaml")])
    assert [each["fix"] for each in before["files"][0]["diagnostics"] if each["fix"]]
    (file,) = assert_valid("check", ["check", "--fix", str(tmp_path / "bad.yaml")])["files"]
    assert file["fixed"]
    assert file["left"]


def test_settings_are_as_the_schema_says() -> None:
    words = "check --show-config recipes recipes/qwen32b-910b-lora.yaml --ignore TRA4 --machine 8xa100-80g"
    _, of_recipe = assert_valid("config", words.split())
    assert of_recipe["settings"]["machine"] == "8xa100-80g"


def test_an_entry_that_was_written_is_as_the_schema_says(tmp_path: Path) -> None:
    shutil.copy(ROOT / "data/tiny_demo.json", tmp_path / "mine.json")
    words = ["data", str(tmp_path / "mine.json"), "--register", "mine", "--dataset-dir", str(tmp_path)]
    assert assert_valid("register", words)["added"]
    assert not assert_valid("register", words)["added"]
