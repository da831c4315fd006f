"""The real Trainer with the real DeepSpeed on a made model of one layer: what the rules PAR say of a JSON is so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from validator.check.checking import check_file
from validator.finding import Severity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.process,
    pytest.mark.sample(one_in=3, whole_for=["release/constraints.txt", "validator/rules/deepspeed_*"], together=True),
]

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
    "sequences": ({"sequence_parallel_size": 2}, "PAR119", "train_batch_size is not equal"),
    "old stage 1": ({"zero_optimization": {"stage": 1, "legacy_stage1": True}}, "PAR119", "deprecated version"),
    "sums": (
        {"zero_optimization": {"stage": 0}, "data_types": {"grad_accum_dtype": "fp16"}},
        "PAR030",
        "unsupported mix",
    ),
    "sums in no format": ({"data_types": {"grad_accum_dtype": "float7"}}, "PAR030", "not a valid DtypeEnum"),
    "sections for others": (
        {"pipeline": {"stages": 2}, "sparse_attention": {"mode": "fixed"}, "dataloader_drop_last": True},
        "",
        "",
    ),
    "no ZeRO": ({"zero_optimization": None}, "PAR104", "ZeRO optimization config"),
}
# Which of four micro batches move the weights, by ZeRO stage and whether the optimizer is offloaded.
KEPT = {
    (2, True): [True, False, False, True],  # PAR023
    (1, True): [True] * 4,
    (2, False): [True] * 4,
}


def configuration(changes: dict[str, Any]) -> str:
    return json.dumps({name: each for name, each in {**PLAIN, **changes}.items() if each})


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the real ones do: of each case why the Trainer stopped, empty where it trained a step, then of KEPT."""
    folder = tmp_path_factory.mktemp("real")
    for place, (changes, *_) in enumerate(CASES.values()):
        (folder / f"{place}.json").write_text(configuration(changes))
    questions = [*(("trained", f"{place}.json") for place in range(len(CASES))), *(("moved", *each) for each in KEPT)]
    program = [sys.executable, str(Path(__file__).parents[1] / "support" / "real_engine.py")]
    done = subprocess.run(program, input=json.dumps(questions), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("name", CASES)
def test_the_engine_stops_where_we_say_so(
    name: str, answers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, code, word = CASES[name]
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(configuration(changes))
    Path("recipe.yaml").write_text(json.dumps(RECIPE))
    errors = {each.code for each in check_file("recipe.yaml").diagnostics if each.severity is Severity.ERROR}
    assert {each for each in errors if each.startswith("PAR")} == ({code} if code else set())
    said = answers[[*CASES].index(name)]
    assert word in said if word else not said


def test_micro_batches_whose_gradients_are_kept(answers: list[Any]) -> None:
    assert answers[len(CASES) :] == [*KEPT.values()]
