"""benchmarks/public_files/deepspeed_files.py on made files: the recipe that agrees with a file, and what is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from public_files import deepspeed_files as zerofiles

PLAIN = {"zero_optimization": {"stage": 2}, "train_batch_size": "auto", "gradient_accumulation_steps": "auto"}


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({}, {}),
        ({"train_micro_batch_size_per_gpu": 4, "train_batch_size": 16}, {"gradient_accumulation_steps": 4}),
        ({"train_batch_size": 8}, {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}),
        ({"optimizer": {"params": {"betas": [0.9, 0.95], "lr": "auto"}}}, {"adam_beta2": 0.95, "learning_rate": 1e-4}),
        ({"fp16": {"enabled": True}}, {"fp16": True, "bf16": False}),
        ({"scheduler": {"params": {"total_num_steps": 50}}}, {"max_steps": 50}),
    ],
)
def test_a_recipe_that_agrees(config: dict[str, Any], keys: dict[str, Any]) -> None:
    made = zerofiles.agreeing(json.dumps({**PLAIN, **config}))
    assert {key: made[key] for key in keys} == keys


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (json.dumps(PLAIN), ""),
        (json.dumps({**PLAIN, "gradient_clipping": 0.5}), ""),
        (json.dumps({**PLAIN, "scheduler": {"type": "CosineAnnealing"}}), "PAR115"),
        ("// a comment\n" + json.dumps(PLAIN), "PTH003"),
    ],
)
def test_only_what_is_wrong_in_the_file_is_ours(text: str, codes: str) -> None:
    assert zerofiles.ours(text) == codes


def test_what_is_counted() -> None:
    lacking = f"ValueError: This op {zerofiles.LACKING}."
    rows = [
        zerofiles.Row("a/b", str(place), "", *each)
        for place, each in enumerate((("ok", ""), ("TypeError", "PAR115"), (lacking, "")))
    ]
    assert all(row.agreed for row in rows)
    wrong = [zerofiles.Row("a/b", "z.json", "", "ok", "PAR115"), zerofiles.Row("a/b", "z.json", "", "TypeError", "")]
    assert not any(row.agreed for row in wrong)
    assert "4 DeepSpeed files" in "\n".join(zerofiles.lines([*rows, wrong[0]]))
