"""What is proposed to do with the result of a run; LLaMA-Factory's own parser is asked about the commands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from knowledge.test_checkpoints import whole
from support.clean_recipe import RECIPE

from validator.launch.after_training import next_steps
from validator.recipe.recipe_file import parse_recipe
from validator.run.settings import resolve

FULL = RECIPE.replace("finetuning_type: lora", "finetuning_type: full").replace("lora_target: all\n", "")
BASE = "--model_name_or_path Qwen/Qwen2.5-7B-Instruct --adapter_name_or_path"


def steps(text: str, file: str = "adapter_model.safetensors", *overrides: str) -> dict[str, str]:
    """What is proposed after a run that left this file."""
    output = Path("saves/x")
    output.mkdir(parents=True, exist_ok=True)
    (output / file).touch()
    lines = next_steps(resolve(parse_recipe("x.yaml", text)), output, overrides)
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


CASES = [
    (RECIPE, "adapter_model.safetensors", f"{BASE} saves/x --finetuning_type lora --template qwen", True),
    # A base in 4 bits is loaded so to chat, and whole to merge.
    (f"{RECIPE}quantization_bit: 4\n", "adapter_model.safetensors",
     f"{BASE} saves/x --finetuning_type lora --template qwen --quantization_bit 4 --quantization_method bnb", True),
    (RECIPE.replace("-7B-Instruct", "-7B-Instruct-AWQ"), "adapter_model.safetensors",
     f"{BASE.replace('Instruct', 'Instruct-AWQ')} saves/x --finetuning_type lora --template qwen", False),
    # Earlier adapters are merged first.
    (f"{RECIPE}adapter_name_or_path: saves/a,saves/b\n", "adapter_model.safetensors",
     f"{BASE} saves/a,saves/x --finetuning_type lora --template qwen", True),
    (f"{RECIPE}adapter_name_or_path: saves/a\ncreate_new_adapter: true\n", "adapter_model.safetensors",
     f"{BASE} saves/a,saves/x --finetuning_type lora --template qwen", True),
    (f"{RECIPE}trust_remote_code: true\nadd_tokens: [<a>, <b>]\n", "adapter_model.safetensors",
     f"{BASE} saves/x --finetuning_type lora --template qwen --trust_remote_code true --add_tokens '<a>,<b>'", True),
    (FULL, "model.safetensors.index.json", "--model_name_or_path saves/x --template qwen", False),
    (FULL, "trainer_log.jsonl", None, False),  # ZeRO-3 may leave no weights
    (RECIPE.replace("stage: sft", "stage: rm"), "adapter_model.safetensors", None, False),
    (RECIPE.replace("stage: sft", "stage: pt"), "adapter_model.safetensors", None, True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "file", "chat", "merges"), CASES)
def test_the_commands_for_a_result(text: str, file: str, chat: str | None, merges: bool) -> None:
    proposed = steps(text, file)
    assert proposed.get("chat") == (chat and f"llamafactory-cli chat {chat}")
    assert ("merge" in proposed) is merges
    if merges:
        assert "quantization" not in proposed["merge"]
        assert proposed["merge"].endswith("--export_dir saves/x-merged")


@pytest.mark.slow
@pytest.mark.parametrize(("text", "file"), [each[:2] for each in CASES])
def test_llamafactory_takes_the_commands(text: str, file: str) -> None:
    parser = pytest.importorskip("llamafactory.hparams.parser")
    for command in steps(text, file).values():
        words = shlex.split(command)[2:]
        model, _, finetuning, _ = parser._parse_infer_args(words)
        assert model.model_name_or_path in words
        assert finetuning.finetuning_type == "lora"
        if model.adapter_name_or_path:
            assert ",".join(model.adapter_name_or_path) in words


def test_more_epochs_go_on_from_the_last_checkpoint() -> None:
    assert "more" not in steps(RECIPE)
    whole(Path("saves/x"), 40)
    proposed = steps(RECIPE, "adapter_model.safetensors", "learning_rate=2e-4", "num_train_epochs=2.0")
    assert proposed["more"] == "lmf-recipes train x.yaml learning_rate=2e-4 num_train_epochs=4"
    assert "more" not in steps(f"{RECIPE}max_steps: 40\n")
