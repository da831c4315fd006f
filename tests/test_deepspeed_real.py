"""The real Trainer with the real DeepSpeed on a made model of one layer: what the rules PAR say of a JSON is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from validator.diagnostic import Severity
from validator.judge.check import check_file

pytestmark = [pytest.mark.slow, pytest.mark.real]

PLAIN: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 1},
}
STEPS = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}
RECIPE = {
    **{"model_name_or_path": "Qwen/Qwen3-8B", "stage": "sft", "do_train": True, "finetuning_type": "full"},
    **{"dataset": "identity", "template": "qwen3_nothink", "cutoff_len": 1024, "output_dir": "out"},
    **{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_steps": 1, "warmup_steps": 1},
    **{"learning_rate": 5.0e-5, "deepspeed": "ds.json"},
}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {  # changes, code of our error, word of the real one
    "plain": ({}, "", ""),
    "the same steps": ({"scheduler": {"type": "WarmupDecayLR", "params": {**STEPS, "warmup_num_steps": 1}}}, "", ""),
    "warm-up": (
        {"scheduler": {"type": "WarmupDecayLR", "params": {**STEPS, "warmup_num_steps": 9}}},
        "PAR020",
        "mismatch",
    ),
    "steps": (
        {"scheduler": {"type": "WarmupDecayLR", "params": {**STEPS, "total_num_steps": 9}}},
        "PAR020",
        "mismatch",
    ),
    "no such scheduler": ({"scheduler": {"type": "CosineAnnealing", "params": {}}}, "PAR115", "does not recognize"),
    "torch's": ({"scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 9}}}, "PAR115", "is not an Optimizer"),
    "lacking": ({"scheduler": {"type": "WarmupDecayLR", "params": {}}}, "PAR113", "missing 1 required"),
    "amp": ({"amp": {"enabled": True}}, "PAR119", "not currently compatible"),
    "elastic": (
        {"elasticity": {"enabled": True, "max_train_batch_size": 4, "micro_batch_sizes": [1]}},
        "PAR119",
        "batch",
    ),
    "data type": ({"communication_data_type": "float7"}, "PAR103", "Invalid communication_data_type"),
    "recomputation": ({"activation_checkpointing": {"partition_activations": True, "nonsense": 1}}, "", ""),
    "stage as text": ({"zero_optimization": {"stage": "1", "reduce_bucket_size": 5e8}}, "", ""),
    "no ZeRO": ({"zero_optimization": None}, "PAR104", "ZeRO optimization config"),
}
PROGRAM = """
import os, pathlib, sys, torch, deepspeed
benchmarks, *names = sys.argv[1:]
sys.path.append(benchmarks)
import forks
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
small = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
model = LlamaForCausalLM(small)
rows = [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 2

def answer(name):
    try:
        arguments = TrainingArguments("out", deepspeed=name, max_steps=1, warmup_steps=1, learning_rate=5.0e-5,
            per_device_train_batch_size=1, bf16=False, report_to="none", save_strategy="no", disable_tqdm=True)
        Trainer(model, arguments, train_dataset=rows).train()
        return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

for name in names:
    if os.fork() == 0:
        said = answer(name)
        open(name + ".answer", "w").write(said)
        forks.leave(pathlib.Path("modules"))
        os._exit(0)
    os.wait()
    forks.take(pathlib.Path("modules"))
"""


def configuration(changes: dict[str, Any]) -> str:
    return json.dumps({name: each for name, each in {**PLAIN, **changes}.items() if each})


def run_alone(program: str, words: list[str], folder: Path) -> None:
    """Run `program` there as the one rank of a process group, on any port that is free."""
    process = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environment = {**os.environ, **process, "CUDA_VISIBLE_DEVICES": ""}
    run = [sys.executable, "-c", program, *words]
    subprocess.run(run, env=environment, cwd=folder, capture_output=True, timeout=1200, check=True)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Why the Trainer stopped, each case in a fork of one process; empty where it trained a step."""
    folder = tmp_path_factory.mktemp("real")
    for place, (changes, *_) in enumerate(CASES.values()):
        (folder / f"{place}.json").write_text(configuration(changes))
    benchmarks = Path(__file__).parents[1] / "benchmarks"
    run_alone(PROGRAM, [str(benchmarks), *(f"{place}.json" for place in range(len(CASES)))], folder)
    return {name: (folder / f"{place}.json.answer").read_text() for place, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_the_engine_stops_where_we_say_so(
    name: str, answers: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, code, word = CASES[name]
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(configuration(changes))
    Path("recipe.yaml").write_text(json.dumps(RECIPE))
    errors = {each.code for each in check_file("recipe.yaml").diagnostics if each.severity is Severity.ERROR}
    assert {each for each in errors if each.startswith("PAR")} == ({code} if code else set())
    assert word in answers[name] if word else not answers[name]


# Micro batch i of four is a unit vector, so that it alone moves column i of the first matrix: by 2/4 in each of four
# rows, as the second matrix is of ones.
GRADIENTS = """
import json, sys, torch, deepspeed
model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2, bias=False))
torch.nn.init.ones_(model[1].weight)
before = model[0].weight.detach().clone()
zero = {"stage": int(sys.argv[1])}
if sys.argv[2:]:
    zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config={
    "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "zero_optimization": zero,
    "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False})
for place, row in enumerate(torch.eye(4, dtype=torch.bfloat16)):
    engine.set_gradient_accumulation_boundary(place == 3)
    engine.backward(engine(row[None]).float().sum())
engine.step()
with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
    after = engine.module[0].weight.detach().float().clone()
moved = (after - before).abs().sum(0)
open("moved", "w").write(json.dumps([bool(each > 1) for each in moved]))
"""


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (["2", "offload"], [True, False, False, True]),  # PAR023
        (["1", "offload"], [True] * 4),
        (["2"], [True] * 4),
    ],
)
def test_micro_batches_whose_gradients_are_kept(words: list[str], moved: list[bool], tmp_path: Path) -> None:
    run_alone(GRADIENTS, words, tmp_path)
    assert json.loads((tmp_path / "moved").read_text()) == moved
