"""A model's folder that a run could not load, or would learn nothing from: a run stops, a dry run says it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from validator.cli import group
from validator.doctor import start_checks
from validator.doctor.check_result import CheckContext
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import resolve

CONFIG = """{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
"num_attention_heads": 4, "intermediate_size": 128}"""
RECIPE = """# /// recipe
# machine: 1xcpu
# ///
model_name_or_path: mine
stage: sft
do_train: true
finetuning_type: lora
template: qwen3_nothink
dataset: alpaca_gpt4_en
output_dir: saves/x
save_total_limit: 2
use_cpu: true
bf16: true
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text(CONFIG)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_text('{"alpaca_gpt4_en": {"hf_hub_url": "a/b"}}')
    return tmp_path / "mine"


def lacking(text: str) -> list[str]:
    job = resolve(parse_recipe("recipe.yaml", text))
    return [line.found for line in start_checks.check_model_folder(job, CheckContext())]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "no weights (*.safetensors) and no tokenizer"), (["model.safetensors"], "`mine` holds no tokenizer"),
        (["tokenizer.json"], "`mine` holds no weights"), (["adapter_model.bin", "training_args.bin"], "no weights"),
        (["model.safetensors", "tokenizer.json"], ""), (["pytorch_model.bin", "vocab.txt"], ""),
        (["model-00001-of-00002.safetensors", "tokenizer.model"], ""), (["model.safetensors", "qwen.tiktoken"], ""),
    ],
)  # fmt: skip
def test_a_folder_needs_weights_and_a_tokenizer(mine: Path, files: list[str], said: str) -> None:
    for name in files:
        (mine / name).touch()
    told = lacking(RECIPE)
    assert bool(told) == bool(said)
    assert said in "".join(told)


@pytest.mark.usefixtures("mine")
def test_a_hub_name_and_a_start_from_scratch_need_no_weights_here() -> None:
    named = RECIPE.replace("mine", "Qwen/Qwen3-0.6B")
    assert lacking(named) == []
    [message] = lacking(f"{RECIPE}train_from_scratch: true\n")
    assert "weights" not in message


@pytest.mark.usefixtures("mine")
def test_a_run_stops_and_a_dry_run_prints_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("started"))
    words = ["train", "recipe.yaml", "--machine", "1xcpu"]
    dry, real = (CliRunner().invoke(group, [*words, *more]) for more in (["--dry-run"], []))
    assert (dry.exit_code, real.exit_code) == (1, 1)
    assert "start         would be refused: `mine` holds no weights" in dry.stderr
    assert "llamafactory-cli train" in dry.stdout
    assert "this machine: error: `mine` holds no weights" in real.stderr


INDEX = '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("weights", "weights", ""),
        (
            "weights",
            None,
            "no model-00002-of-00002.safetensors, which model.safetensors.index.json names (1 of 2 files are missing)",
        ),
        ("weights", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a pointer of Git LFS"),
    ],
)
def test_a_download_that_did_not_end(mine: Path, first: str, second: str | None, said: str) -> None:
    (mine / "tokenizer.json").touch()
    (mine / "model.safetensors.index.json").write_text(INDEX)
    (mine / "model-00001-of-00002.safetensors").write_text(first)
    if second:
        (mine / "model-00002-of-00002.safetensors").write_text(second)
    told = lacking(RECIPE)
    assert bool(told) == bool(said)
    assert said in "".join(told)


@pytest.mark.parametrize("whole", ["model.safetensors", "pytorch_model.bin"])
def test_an_index_that_transformers_does_not_look_at(mine: Path, whole: str) -> None:
    for name in ("tokenizer.json", whole):
        (mine / name).touch()
    (mine / "pytorch_model.bin.index.json").write_text(INDEX)
    assert not lacking(RECIPE)
