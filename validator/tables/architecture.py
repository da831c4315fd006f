"""A model's published config.json -> the shapes the memory formulas need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.diagnostic import RecipeError
from validator.memory import Architecture, Attn, Ffn

Config = Mapping[str, Any]
_FUSED = {"phi3", "qwen", "internlm2"}
_FUSED_GATE_UP = {"phi3", "glm", "glm4"}
_CONCATENATED = {"phi3", "glm", "glm4"}  # partial rotation (transformers 5.6, apply_rotary_pos_emb)
_HEAD_NORMS = {"qwen3", "qwen3_moe", "gemma3_text"}
_FOUR_NORMS = {"gemma2", "gemma3_text", "glm4"}
_TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3_text"}
_QKV_BIAS = {"qwen2", "qwen"}
SUPPORTED = frozenset(
    {
        "llama",
        "mistral",
        "mixtral",
        "qwen",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "phi3",
        "internlm2",
        "internlm3",
        "gpt_oss",
        "deepseek_v2",
        "deepseek_v3",
    }
)


def architecture(config: Config) -> Architecture:
    """Shapes from config.json's own fields. Raises RecipeError for a model type or field that is not known."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in SUPPORTED:
        raise RecipeError(f"model type `{kind}` is not among the supported ones ({', '.join(sorted(SUPPORTED))})")
    try:
        return Architecture(
            hidden=_size(config, "hidden_size"),
            layers=_size(config, "num_hidden_layers"),
            vocab=_size(config, "vocab_size"),
            attn=_latent(config) if _optional(config, "kv_lora_rank") else _attention(config, kind),
            ffn=_feed_forward(config, kind),
            tied=bool(config.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT)),
            norms_per_layer=4 if kind in _FOUR_NORMS else 2,
            logit_softcap=bool(config.get("final_logit_softcapping")),
        )
    except KeyError as err:
        raise RecipeError(f"config.json of a `{kind}` model lacks {err}") from None


def _size(config: Config, name: str) -> int:
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise RecipeError(f"config.json: `{name}` is {value!r}, not a positive whole number")
    return value


def _optional(config: Config, name: str) -> int:
    """0 where the field is absent, null or 0."""
    return _size(config, name) if config.get(name) else 0


def _attention(config: Config, kind: str) -> Attn:
    heads = _size(config, "num_attention_heads")
    biased = bool(config.get("attention_bias") or config.get("qkv_bias") or kind in _QKV_BIAS)
    windowed = _optional(config, "sliding_window") if config.get("use_sliding_window", True) else 0
    return Attn(
        heads=heads,
        kv_heads=_optional(config, "num_key_value_heads") or heads,
        head_dim=_optional(config, "head_dim")
        or _optional(config, "kv_channels")
        or _size(config, "hidden_size") // heads,
        qkv_bias=biased,
        out_bias=bool(config.get("attention_bias") and kind not in {"glm", "glm4"}),
        head_norms=kind in _HEAD_NORMS,
        sinks=kind == "gpt_oss",
        window=windowed,
        fused=kind in _FUSED,
        concatenated=kind in _CONCATENATED,
    )


def _latent(config: Config) -> Attn:
    rope = _size(config, "qk_rope_head_dim")
    heads = _size(config, "num_attention_heads")
    return Attn(
        heads=heads,
        kv_heads=heads,
        head_dim=_size(config, "qk_nope_head_dim") + rope,
        value_dim=_size(config, "v_head_dim"),
        q_rank=_optional(config, "q_lora_rank"),
        kv_rank=_size(config, "kv_lora_rank"),
        rope_dim=rope,
        out_bias=bool(config.get("attention_bias")),
    )


def _feed_forward(config: Config, kind: str) -> Ffn:
    width = _size(config, "intermediate_size")
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    experts = next((found for name in names if (found := _optional(config, name))), 0)
    if not experts:
        return Ffn(width // 2 if kind == "qwen" else width, fused_gate_up=kind in _FUSED_GATE_UP,
                   bias=bool(config.get("mlp_bias")))  # fmt: skip
    expert_width = _optional(config, "moe_intermediate_size") or width
    return Ffn(
        width,
        experts=experts,
        experts_per_token=_size(config, "num_experts_per_tok"),
        expert_width=expert_width,
        shared_width=_optional(config, "n_shared_experts") * expert_width,
        router_bias=kind == "gpt_oss",
        router_linear=kind == "deepseek_v2",
        router_bias_buffer=kind == "deepseek_v3",
        expert_bias=kind == "gpt_oss",
        clamped=kind == "gpt_oss",
        dense_layers=_optional(config, "first_k_dense_replace"),
    )
