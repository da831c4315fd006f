"""Tiny random models of the recipes' own classes, and tiny data sets for each stage. Nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
# Sizes that every class gets; a field that a model's published configuration lacks is left to the class.
SMALL: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "sliding_window": 64, "max_position_embeddings": 2048,
    "intermediate_size_mlp": 128, "shared_expert_intermediate_size": 32, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "cross_attention_layers": [1],
    "global_head_dim": 32, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 2,
}  # fmt: skip
# Fields whose length or meaning goes with the sizes, and how the published weights are stored.
DROPPED = {
    "model_type",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "max_window_layers",
    "sliding_window_pattern",
    "quantization_config",
}
ROWS = 24
# Rows of the embedding for tokens that a template adds where the tokenizer lacks them.
SPARE = 64


def model(published: Mapping[str, Any], target: Path) -> None:
    """Write a model of the published configuration's class, in bf16, with the demo's tokenizer."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(ROOT / "demo" / "tiny-qwen3")
    kept = small(published)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[published["model_type"]](**{**kept, **ends, "vocab_size": len(tokenizer) + SPARE})
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


def small(published: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a language model's published configuration in small sizes; what is switched off in it stays so."""
    kept = {key: value and SMALL.get(key, value) for key, value in published.items() if key not in DROPPED}
    if published.get("num_key_value_heads") == published["num_attention_heads"]:
        kept["num_key_value_heads"] = kept["num_attention_heads"]
    return kept


def data(target: Path) -> None:
    """Write a registry with one small set for each stage, made of the demo's rows."""
    rows = json.loads((ROOT / "data" / "tiny_demo.json").read_text("utf-8"))[:ROWS]
    pairs = [{**row, "chosen": row["output"], "rejected": "I do not know."} for row in rows]
    texts = [{"text": f"{row['instruction']} {row['input']} {row['output']}"} for row in rows]
    marked = [{**row, "label": number % 2 == 0} for number, row in enumerate(rows)]
    asked = {"prompt": "instruction", "query": "input"}
    ranking = {"ranking": True, "columns": {**asked, "chosen": "chosen", "rejected": "rejected"}}
    sets: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "sft": (rows, {}),
        "dpo": (pairs, ranking),
        "rm": (pairs, ranking),
        "kto": (marked, {"columns": {**asked, "response": "output", "kto_tag": "label"}}),
        "pt": (texts, {"columns": {"prompt": "text"}}),
    }
    target.mkdir(parents=True)
    for name, (content, _) in sets.items():
        (target / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    registry = {name: {"file_name": f"{name}.json", **entry} for name, (_, entry) in sets.items()}
    (target / "dataset_info.json").write_text(json.dumps(registry), "utf-8")
