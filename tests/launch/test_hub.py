"""What the environment says of the hubs: commands carry it, and a run that could load nothing is not started."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.program import run

from validator.doctor import hub_checks
from validator.doctor.check_result import CheckContext, State
from validator.knowledge import models, tables
from validator.recipe.recipe_file import parse_recipe
from validator.run import model_files
from validator.run.settings import resolve

MODEL = "model_name_or_path: Qwen/Qwen3-0.6B\n"
RECIPE = f"""# /// recipe
# machine: 1xcpu
# ///
{MODEL}stage: sft
do_train: true
finetuning_type: lora
template: qwen3_nothink
dataset: mine
output_dir: saves/x
save_total_limit: 2
use_cpu: true
bf16: true
"""
REGISTRY = '{"mine": {"hf_hub_url": "Org/MySet-2"}, "both": {"hf_hub_url": "a/b", "ms_hub_url": "c/d"}}'
COMMIT = "0123456789abcdef"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "MODELSCOPE_CACHE", "HF_DATASETS_CACHE",
                 "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "USE_MODELSCOPE_HUB"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(REGISTRY)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def found(text: str) -> list[tuple[State, str]]:
    job = resolve(parse_recipe("recipe.yaml", text))
    return [(line.state, line.found) for line in hub_checks.check_downloads(job, CheckContext())]


def download(here: Path, file: str = "model.safetensors") -> None:
    place = here / "hf/hub/models--Qwen--Qwen3-0.6B"
    (place / "snapshots" / COMMIT).mkdir(parents=True, exist_ok=True)
    (place / "snapshots" / COMMIT / file).touch()
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / "main").write_text(COMMIT)


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "ON", "yes", "true"])
def test_without_network_the_model_must_be_here(
    switch: str, value: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(MODEL) == []
    monkeypatch.setenv(switch, value)
    download(here, "config.json")  # which says what it is, and is no model
    [(state, message)] = found(MODEL)
    assert state == "error"
    assert f"{switch} is set, and `Qwen/Qwen3-0.6B` has a config.json in the cache, and no weights" in message
    download(here)
    assert found(MODEL) == []


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("value", ["0", "", "no", "y"])
def test_huggingface_hub_takes_other_words_as_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert found(MODEL) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("model_name_or_path: ./mine\n", 0), (f"{MODEL}model_revision: v9\n", 1), (f"{MODEL}cache_dir: other\n", 1),
        (f"{MODEL}adapter_name_or_path: Org/A,Org/B\n", 2), (f"{MODEL}reward_model: http://localhost:8000\n", 0),
    ],
)  # fmt: skip
def test_what_is_loaded_from_a_hub(text: str, number: int, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (here / "mine").mkdir()
    download(here)
    assert len(found(text)) == number


def test_a_download_that_the_run_does_not_look_for_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_CACHE", str(here / "ms"))
    place = here / "ms/models/Qwen/Qwen3-0___6B"
    place.mkdir(parents=True)
    assert found(MODEL) == []
    (place / "model.safetensors").touch()
    [(state, message)] = found(MODEL)
    assert (state, "USE_MODELSCOPE_HUB=1" in message) == ("warning", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [(state, message)] = found(MODEL)
    assert (state, "USE_MODELSCOPE_HUB=1" in message) == ("error", True)
    download(here)
    assert found(MODEL) == []


def test_a_download_with_other_shapes_is_told(here: Path) -> None:
    download(here, "config.json")
    place = here / "hf/hub/models--Qwen--Qwen3-0.6B/snapshots" / COMMIT / "config.json"
    config = dict(tables.yaml_table("models")["qwen3-0.6b"]["config"])
    place.write_text(json.dumps(config))
    assert found(MODEL) == []
    place.write_text(json.dumps({**config, "num_hidden_layers": 99}))
    models._model_in_folder.cache_clear()
    [(state, message)] = found(MODEL)
    assert state == "warning"
    assert "Hugging Face cache has other shapes" in message
    place.write_text(json.dumps({**config, "model_type": "of_images_too"}))
    models._model_in_folder.cache_clear()
    assert found(MODEL) == []


def test_a_data_set_that_was_never_loaded_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    download(here)
    assert [state for state, _ in found(f"{MODEL}dataset: mine\n")] == ["warning"]
    (here / "hf/datasets/Org___my_set-2/default/0.0.0").mkdir(parents=True)
    assert found(f"{MODEL}dataset: mine\n") == []


def test_datasets_writes_that_name() -> None:
    naming = pytest.importorskip("datasets.naming")
    assert model_files._letters_only(f"Org___{naming.camelcase_to_snakecase('MySet-2')}") == model_files._letters_only(
        "Org___MySet-2"
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("HF_ENDPOINT", "https://hf-mirror.com", "HF_ENDPOINT=https://hf-mirror.com"),
        ("USE_MODELSCOPE_HUB", "1", "USE_MODELSCOPE_HUB=1"), ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE=1"),
        ("HF_ENDPOINT", "http://a b/$x", "HF_ENDPOINT='http://a b/$x'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "words", [["explain", "recipe.yaml", "--full"], ["train", "recipe.yaml", "--machine", "1xcpu", "--dry-run"]]
)
def test_a_printed_command_carries_what_the_environment_says(
    words: list[str], name: str, value: str, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "HF_" not in command(words)
    monkeypatch.setenv(name, value)
    assert f"{written} llamafactory-cli train" in command(words)


def command(words: list[str]) -> str:
    return next(line for line in run(*words).stdout.splitlines() if "llamafactory-cli train" in line)


def test_a_run_from_folders_carries_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://hf-mirror.com")
    (here / "mine").mkdir()
    assert model_files.hub_env(resolve(parse_recipe("recipe.yaml", "model_name_or_path: mine\n"))) == {}
    assert model_files.hub_env(resolve(parse_recipe("recipe.yaml", MODEL))) == {"HF_ENDPOINT": "https://hf-mirror.com"}


@pytest.mark.usefixtures("here")
def test_a_dry_run_says_what_is_lacking_and_a_run_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("started"))
    dry = run("train", "recipe.yaml", "--machine", "1xcpu", "--dry-run")
    assert dry.exit_code == 1, dry.output
    assert "start         would be refused: HF_HUB_OFFLINE is set" in dry.stderr
    real = run("train", "recipe.yaml", "--machine", "1xcpu")
    assert real.exit_code == 1
    assert "this machine: error: HF_HUB_OFFLINE is set" in real.stderr
