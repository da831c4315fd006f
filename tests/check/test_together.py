"""Faults that have nothing to do with each other are told in one run of `check`, not one after the other."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from validator.check.checking import check_document
from validator.finding import Severity
from validator.recipe.recipe_file import parse_recipe

HEADER = "# /// recipe\n# machine: 8xa100-80g\n# ///\n"
SOUND: dict[str, object] = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": "true", "finetuning_type": "lora",
    "dataset": "tiny", "template": "qwen", "output_dir": "saves/x", "bf16": "true", "cutoff_len": "2048",
    "learning_rate": "1.0e-4",
}  # fmt: skip
FAULTS: dict[str, dict[str, object]] = {
    "model": {"model_name_or_path": "./models/none"},
    "zero file": {"deepspeed": "ds/ds_z3_config.json"},
    "registry": {"dataset_dir": "nowhere"},
    "data set": {"dataset": "tinny"},
    "data file": {"dataset": "gone"},
    "unknown key": {"lora_rnak": "8"},
    "two formats": {"fp16": "true"},
    "unknown template": {"template": "qwenn"},
    "template of another": {"template": "llama3"},
    "odd cutoff": {"cutoff_len": "1001", "packing": "true"},
    "cutoff is text": {"cutoff_len": "2k"},
    "stage": {"stage": "sftt"},
    "method": {"finetuning_type": "qlora"},
    "target": {"lora_target": "foo"},
    "galore": {"use_galore": "true"},
    "adapter": {"adapter_name_or_path": "saves/none"},
    "checkpoint": {"resume_from_checkpoint": "saves/none/checkpoint-1"},
    "rate": {"learning_rate": "fast"},
    "optimizer": {"optim": "adamm"},
    "batch": {"per_device_train_batch_size": "0"},
    "evaluation": {"eval_strategy": "steps"},
}
# What is not told beside another fault -> why it cannot be.
DEPENDENT = {
    ("data set", "registry"): "a registry that is missing defines no data set",
    ("data file", "registry"): "a registry that is missing names no file",
    ("template of another", "model"): "a template is that of a model",
    ("target", "model"): "modules are those of a model",
    ("target", "adapter"): "an adapter brings its own modules",
}


def errors(*faults: str) -> set[tuple[str, str | None]]:
    values = dict(SOUND)
    for fault in faults:
        values |= FAULTS[fault]
    text = HEADER + "".join(f"{key}: {value}\n" for key, value in values.items())
    found = check_document(parse_recipe("x.yaml", text)).diagnostics
    return {(each.code, each.key) for each in found if each.severity is Severity.ERROR or each.code == "TRA605"}


def test_independent_faults_are_told_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/dataset_info.json").write_text('{"tiny": {"hf_hub_url": "a/b"}, "gone": {"file_name": "x.json"}}')
    assert errors() == set()
    single = {fault: errors(fault) for fault in FAULTS}
    assert all(single.values())
    hidden = {
        (one, other)
        for pair in combinations(FAULTS, 2)
        if not FAULTS[pair[0]].keys() & FAULTS[pair[1]].keys()
        for one, other in (pair, pair[::-1])
        if single[one] - errors(*pair)
    }
    assert hidden == DEPENDENT.keys()
