"""What measure.py measures: the models and the grid of settings."""

from __future__ import annotations

import itertools
import random
from typing import Any

Cell = dict[str, Any]


def _config(kind: str, hidden: int, ffn: int, layers: int, heads: int, kv: int, vocab: int, **other: Any) -> Cell:
    return {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab, "tie_word_embeddings": False,
        "dtype": "bfloat16", "max_position_embeddings": 32768, **other,
    }  # fmt: skip


_TIED = {"head_dim": 128, "tie_word_embeddings": True}
_MOE = {
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
}  # fmt: skip
_GEMMA = {
    "head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096, "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
# Shapes as in config.json of Qwen/Qwen3-0.6B ... Qwen/Qwen3-30B-A3B, Qwen/Qwen2.5-7B-Instruct and -32B-Instruct,
# meta-llama/Llama-3.1-8B-Instruct, mistralai/Mistral-7B-Instruct-v0.3, google/gemma-2-9b-it.
MODELS: dict[str, Cell] = {
    "qwen3-0.6b": _config("qwen3", 1024, 3072, 28, 16, 8, 151936, **_TIED),
    "qwen3-1.7b": _config("qwen3", 2048, 6144, 28, 16, 8, 151936, **_TIED),
    "qwen3-4b": _config("qwen3", 2560, 9728, 36, 32, 8, 151936, **_TIED),
    "qwen3-8b": _config("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
    "qwen3-14b": _config("qwen3", 5120, 17408, 40, 40, 8, 151936, head_dim=128),
    "qwen3-30b-a3b": _config("qwen3_moe", 2048, 6144, 48, 32, 4, 151936, **_MOE),
    "qwen2.5-7b": _config("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "qwen2.5-32b": _config("qwen2", 5120, 27648, 64, 40, 8, 152064),
    "llama-3.1-8b": _config("llama", 4096, 14336, 32, 32, 8, 128256, rms_norm_eps=1e-5),
    "mistral-7b": _config("mistral", 4096, 14336, 32, 32, 8, 32768, sliding_window=None),
    "gemma-2-9b": _config("gemma2", 3584, 14336, 42, 16, 8, 256000, **_GEMMA),
}
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}  # fmt: skip

# Every cell states all of these. `through` is "call" for LLaMA-Factory's entry function in this process or "cli" for
# `llamafactory-cli train` in its own; "context" measures a process that only touches the device. `alloc` goes to
# PyTorch's allocator; `cap_gib` makes it behave as on a smaller card (0: the whole card).
DEFAULTS: Cell = {
    "model": "qwen3-8b", "method": "lora", "stage": "sft", "quantization_bit": 0, "lora_rank": 8, "lora_target": "all",
    "precision": "bf16", "seq_len": 2048, "micro_batch": 1, "grad_accum": 1, "checkpointing": True, "attention": "sdpa",
    "padded": False, "optimizer": "adamw_torch_fused", "galore": False, "liger": False, "deepspeed": "",
    "eval_batch": 0, "alloc": "", "cap_gib": 0, "through": "call",
}  # fmt: skip

MIDDLE = ["qwen3-0.6b", "qwen3-4b", "qwen3-8b", "llama-3.1-8b", "mistral-7b"]
SMALL = ["qwen3-0.6b", "qwen3-1.7b", "qwen3-4b"]
LORA_ALL = ["qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen2.5-7b", "llama-3.1-8b", "mistral-7b"]
QV = "q_proj,v_proj"
FULL = {"method": ["full"]}
PURE = {**FULL, "precision": ["pure_bf16"]}
SEGMENTS = "expandable_segments:True"
SHAPES: list[tuple[int, int]] = [(512, 8), (1024, 4), (2048, 2), (2048, 4), (4096, 1), (4096, 4), (16384, 1)]

SWEEPS: list[dict[str, list[Any]]] = [
    {"through": ["context"]},
    {"model": LORA_ALL, "seq_len": [512, 2048, 8192]},
    {"model": ["qwen2.5-32b", "qwen3-30b-a3b", "gemma-2-9b"], "seq_len": [512, 4096]},
    {"model": MIDDLE, "lora_rank": [64], "lora_target": ["all", QV], "seq_len": [1024, 4096]},
    {"model": MIDDLE[:4], "checkpointing": [False], "seq_len": [512, 2048]},
    {"model": MIDDLE, "padded": [True], "seq_len": [2048, 8192]},
    {"model": MIDDLE[:3], "attention": ["disabled"], "seq_len": [1024, 2048]},
    {"model": MIDDLE, "grad_accum": [4]},
    {"model": MIDDLE, "alloc": [SEGMENTS], "seq_len": [2048, 8192]},
    {"model": MIDDLE, "liger": [True], "seq_len": [2048, 8192]},
    {"model": [*LORA_ALL, "gemma-2-9b", "qwen2.5-32b"], "quantization_bit": [4], "seq_len": [512, 4096]},
    {"model": MIDDLE[:4], "quantization_bit": [4], "lora_rank": [64], "alloc": ["", SEGMENTS]},
    {"model": ["qwen3-30b-a3b"], "quantization_bit": [4]},
    {"model": MIDDLE[1:], "quantization_bit": [8], "seq_len": [512, 4096]},
    {**FULL, "model": [*SMALL, "qwen2.5-7b"], "seq_len": [512, 4096]},
    {**FULL, "model": SMALL[1:], "grad_accum": [4]},
    {**FULL, "model": SMALL[1:], "checkpointing": [False], "seq_len": [512]},
    {**FULL, "model": SMALL[1:], "alloc": [SEGMENTS]},
    {**FULL, "model": SMALL[1:], "optimizer": ["adafactor", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit"]},
    {**PURE, "model": [*SMALL, "qwen3-8b", "llama-3.1-8b", "qwen3-14b"], "seq_len": [512, 4096]},
    {**PURE, "model": ["qwen3-4b", "qwen3-8b"], "grad_accum": [4]},
    {**PURE, "model": ["qwen3-4b", "qwen3-8b"], "optimizer": ["adafactor", "adamw_8bit"]},
    {**PURE, "model": SMALL[1:], "galore": [True]},
    {"method": ["freeze"], "model": MIDDLE, "seq_len": [512, 4096]},
    {"method": ["freeze"], "model": MIDDLE[:3], "checkpointing": [False]},
    {"stage": ["dpo"], "model": MIDDLE, "seq_len": [512, 2048]},
    {"model": ["qwen3-0.6b", "qwen3-8b"], "eval_batch": [8], "seq_len": [512, 2048]},
    {"deepspeed": ["ds_z2.json", "ds_z3.json"], "model": SMALL[1:]},
    {**FULL, "deepspeed": ["ds_z2.json", "ds_z3.json"], "model": SMALL[1:]},
    {"deepspeed": ["ds_z2_offload.json", "ds_z3_offload.json"], "model": SMALL[1:]},
    {**FULL, "deepspeed": ["ds_z2_offload.json", "ds_z3_offload.json"], "model": SMALL[:2]},
    {"model": ["qwen3-8b", "qwen2.5-7b"], "cap_gib": [24], "seq_len": [512, 1024, 2048, 3072, 4096]},
    {"model": ["qwen3-8b", "qwen2.5-7b"], "cap_gib": [24], "seq_len": [2048, 3072], "alloc": [SEGMENTS]},
    {**FULL, "model": ["qwen3-8b", "llama-3.1-8b"], "seq_len": [512, 2048]},
    {"precision": ["fp16"], "model": ["qwen3-1.7b", "qwen3-8b"], "quantization_bit": [0, 4]},
    {**FULL, "precision": ["fp16"], "model": SMALL[:2]},
    {"through": ["cli"], "model": ["qwen3-0.6b", "qwen3-4b"], "seq_len": [2048]},
    {"through": ["cli"], "model": ["qwen3-0.6b"], "method": ["full"], "seq_len": [2048]},
]


def cells() -> list[Cell]:
    """Every cell once, shuffled, so that an interrupted run is a fair sample of the grid."""
    chosen = [cell for sweep in SWEEPS for cell in _expand(sweep)] + _shapes()
    unique = list({tuple(cell.items()): cell for cell in chosen}.values())
    random.Random(0).shuffle(unique)
    return sorted(unique, key=lambda cell: cell["through"] != "context")


def _expand(sweep: dict[str, list[Any]]) -> list[Cell]:
    return [{**DEFAULTS, **dict(zip(sweep, values, strict=True))} for values in itertools.product(*sweep.values())]


def _shapes() -> list[Cell]:
    return [
        {**DEFAULTS, "model": model, "seq_len": length, "micro_batch": batch, "quantization_bit": bits}
        for model, bits in [("qwen3-0.6b", 0), ("qwen3-8b", 0), ("llama-3.1-8b", 0), ("qwen3-8b", 4)]
        for length, batch in SHAPES
    ]
