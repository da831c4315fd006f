"""`check --base M` judges recipes whose model is not known as M, and leaves all others as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import program

RECIPE = """model_name_or_path: {}
stage: sft
do_train: true
finetuning_type: lora
dataset: x/y
dataset_dir: ONLINE
template: qwen3
output_dir: out
bf16: true
per_device_train_batch_size: 1
"""
UNKNOWN = ["/data/ours", "mycompany/SuperChat", "YOUR_MODEL", "saves/first/checkpoint-100", "'${MODEL}'"]
# One known by its name, one by the words of its folder, one by its own header block.
KNOWN = [
    "Qwen/Qwen3-0.6B",
    "/models/Qwen2.5-72B-Instruct-tickets",
    "ours/x\n# /// recipe\n# base: Qwen/Qwen3-0.6B\n# ///",
]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, model in enumerate([*UNKNOWN, *KNOWN]):
        Path(f"{number}.yaml").write_text(RECIPE.format(model))


def verdicts(*options: str) -> list[str]:
    answer = program.run("check", ".", "--machine", "1xrtx-4090", "--format", "json", *options)
    return [each["verdict"] for each in json.loads(answer.output)["files"]]


def test_only_recipes_whose_model_is_not_known_are_judged_by_it() -> None:
    before, small, large = verdicts(), verdicts("--base", "qwen3-0.6b"), verdicts("--base", "Qwen/Qwen3-32B")
    assert set(before[: len(UNKNOWN)]) == {"unknown"}
    assert (set(small[: len(UNKNOWN)]), set(large[: len(UNKNOWN)])) == ({"fits"}, {"exceeds"})
    assert before[len(UNKNOWN) :] == small[len(UNKNOWN) :] == large[len(UNKNOWN) :] == ["fits", "exceeds", "fits"]


def test_the_summary_says_that_it_is_there() -> None:
    assert "model not known, --base NAME names it" in program.run("check", ".", "--machine", "1xrtx-4090").output
    assert "memory not judged" not in program.run("check", ".", "--machine", "1xrtx-4090", "--base", "qwen3-8b").output


def test_a_base_that_is_not_known_is_wrong_usage() -> None:
    answer = program.run("check", ".", "--base", "Qwen/Qwen3-88B")
    assert (answer.exit_code, "is not known" in answer.output) == (2, True)
