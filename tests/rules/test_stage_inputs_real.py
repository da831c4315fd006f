"""Small models of transformers' own classes, given what a stage hands on: what data/stage_inputs.yaml says of the
installed release is so, and each row says where it was read."""

from __future__ import annotations

from typing import Any

import pytest

from validator.knowledge import releases, tables
from validator.rows.dataset_attr import MODALITIES

TABLE = tables.yaml_table("stage_inputs")
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
}
TEXT |= {"num_key_value_heads": 2, "vocab_size": 512, "pad_token_id": 0}
MROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
EYES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 28,
}
EYES |= {"patch_size": 14, "projection_dim": 64}
QWEN: dict[str, Any] = {
    "depth": 2,
    "embed_dim": 64,
    "hidden_size": 64,
    "num_heads": 4,
    "intermediate_size": 64,
    "patch_size": 14,
}
QWEN |= {"out_hidden_size": 64, "deepstack_visual_indexes": [1], "fullatt_block_indexes": [1]}
MARKS = {"image_token_id": 400, "video_token_id": 401, "vision_start_token_id": 402, "vision_end_token_id": 403}
GRID: dict[str, Any] = {"pixel_values": (16, 3 * 2 * 14 * 14), "image_grid_thw": [[1, 4, 4]]}
CONFIGS: dict[str, dict[str, Any]] = {
    "paligemma": {"text_config": {**TEXT, "model_type": "gemma"}, "vision_config": EYES, "image_token_id": 400},
    "gemma3": {"text_config": TEXT, "vision_config": EYES},
    "qwen2_vl": {"text_config": {**TEXT, **MROPE}, "vision_config": QWEN, **MARKS},
    "qwen2_5_vl": {"text_config": {**TEXT, **MROPE}, "vision_config": QWEN, **MARKS},
    "qwen3_vl": {"text_config": {**TEXT, **MROPE}, "vision_config": QWEN, **MARKS},
    "llava": {"text_config": {**TEXT, "model_type": "llama"}, "vision_config": EYES},
}


def first_step(kind: str, stage: str) -> str:
    """The error with which a training step of a small model of this type ends, given what the stage hands on."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind])
    model = transformers.AutoModelForImageTextToText.from_config(config).train()
    ids = torch.randint(10, 300, (2, 14))
    inputs = {"attention_mask": torch.ones_like(ids)}
    if stage == "pt":
        inputs["labels"] = ids
    elif kind.startswith("qwen"):
        ids[0, -5:] = torch.tensor([402, 400, 400, 400, 400])
        pixels, grid = GRID["pixel_values"], GRID["image_grid_thw"]
        inputs |= {"pixel_values": torch.randn(*pixels), "image_grid_thw": torch.tensor(grid)}
    elif kind != "llava":
        inputs["token_type_ids"] = torch.ones_like(ids)
    try:
        model(input_ids=ids, **inputs, use_cache=False)
    except ValueError as err:
        return str(err)
    return ""


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "stage", "ends"),
    [
        ("paligemma", "pt", "`token_type_ids` is required"),
        ("paligemma", "kto", ""),
        ("gemma3", "pt", ""),
        ("qwen2_vl", "pt", ""),
        ("qwen2_vl", "kto", "`mm_token_type_ids` is missing"),
        ("qwen3_vl", "kto", "`mm_token_type_ids` is missing"),
        ("qwen2_5_vl", "kto", ""),
        ("llava", "pt", ""),
    ],
)
def test_the_first_step_ends_as_the_table_says(kind: str, stage: str, ends: str) -> None:
    said = " ".join(row.get("ends", "") for row in TABLE.get(kind, ()) if _holds(row))
    error = first_step(kind, stage)
    assert (ends in error) if ends else not error
    assert ends in said


def _holds(row: dict[str, Any]) -> bool:
    """Whether a row holds for the newest releases."""
    newest, until = releases.newest_pair(), row.get("until", "")
    return releases.is_at_least(newest, row.get("since", "")) and not (until and releases.is_at_least(newest, until))


@pytest.mark.parametrize("kind", TABLE)
def test_each_row_is_sourced_and_says_what_becomes_of_the_run(kind: str) -> None:
    for row in TABLE[kind]:
        assert {"input", "beside", "remedy", "source"} <= row.keys()
        assert ("ends" in row) != ("loses" in row)
        assert row["beside"] in ("anything", "pictures") or {*row["beside"].split()} <= MODALITIES.keys()
