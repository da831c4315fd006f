"""TRA018: the ends of each range. The lowest value is admitted, and what lies below is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from validator.check import checking
from validator.recipe.recipe_file import Document
from validator.rules import training_arguments

VALUES: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "sft", "do_train": True, "do_eval": True,
    "finetuning_type": "lora", "template": "qwen", "output_dir": "saves/x", "bf16": True, "optim": "adamw_torch",
}  # fmt: skip
# What makes a run read the key. Generation is asked for by `predict_with_generate`.
READ: dict[str, dict[str, Any]] = {
    **{key: {"predict_with_generate": True, "do_sample": True} for key in ("temperature", "top_p", "top_k")},
    **{
        key: {"predict_with_generate": True}
        for key in (
            "eval_num_beams", "num_beams", "generation_num_beams", "generation_max_length", "repetition_penalty",
        )
    },
    **{
        key: {"enable_torch_profiler": True}
        for key in ("profiler_active_steps", "profiler_wait_steps", "profiler_warmup_steps", "profiler_repeat")
    },
    "apollo_rank": {"use_apollo": True, "finetuning_type": "full"},
    "oft_block_size": {"finetuning_type": "oft"},
}  # fmt: skip


def refused(key: str, value: float) -> bool:
    document = Document("x.yaml", "", {**VALUES, **READ.get(key, {}), key: value})
    found = checking.check_document(document, None, None).diagnostics
    return any(each.code == "TRA018" and f"`{key}`" in each.message for each in found)


@pytest.mark.parametrize("key", training_arguments._RANGES)
def test_the_lowest_value_of_a_range_is_admitted_and_the_next_below_is_not(key: str) -> None:
    low, end = training_arguments._RANGES[key].low, training_arguments._RANGES[key].end
    below = low - 1 if isinstance(low, int) else math.nextafter(low, -1)
    assert (refused(key, low), refused(key, below)) == (False, True)
    if end < math.inf:
        assert refused(key, end)
