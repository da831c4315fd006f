"""The model of the demonstration is what its program draws, and whole: the real classes take it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from validator.knowledge import models

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "demo" / "tiny-qwen3"


def test_the_weights_are_what_the_program_draws(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "make_tiny_model.py", tmp_path / "tools")
    copied = tmp_path / "demo" / "tiny-qwen3"
    shutil.copytree(FOLDER, copied)
    (copied / "model.safetensors").unlink()
    subprocess.run([sys.executable, tmp_path / "tools" / "make_tiny_model.py"], check=True)
    made, kept = ((each / "model.safetensors").read_bytes() for each in (copied, FOLDER))
    assert made == kept


def test_the_tensors_are_those_of_the_configuration() -> None:
    data = (FOLDER / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {name: each for name, each in json.loads(data[8:begin]).items() if name != "__metadata__"}
    assert sum(prod(each["shape"]) for each in tensors.values()) == models.find_model(str(FOLDER)).parameters
    end = 0
    for each in tensors.values():
        assert each["data_offsets"] == [end, end + 2 * prod(each["shape"])]
        end = each["data_offsets"][1]
    assert begin + end == len(data)
    assert begin % 8 == 0


@pytest.mark.training
def test_the_real_classes_take_it() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, loaded = AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not any(loaded.values())
    weights = model.model.layers[0].mlp.up_proj.weight.float()
    assert abs(weights.std().item() - 0.02) < 0.001
    assert torch.equal(model.model.norm.weight.float(), torch.ones(64))
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert len(tokenizer) == model.config.vocab_size
    said = tokenizer.apply_chat_template([{"role": "user", "content": "3 + 4 = ?"}], tokenize=False)
    assert tokenizer.decode(tokenizer(said)["input_ids"]) == said
