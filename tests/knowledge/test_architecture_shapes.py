"""config.json -> shapes: the peculiarities of each model family, by published configs and by counting."""

from __future__ import annotations

from typing import Any

import pytest
from support.every import every

from validator.errors import RecipeError
from validator.knowledge import families
from validator.knowledge.architectures import read_architecture
from validator.physics import LayerKind, parameter_count

DENSE: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
PLAIN = {key: value for key, value in DENSE.items() if "expert" not in key and "moe" not in key}
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "mamba_n_heads": 4,
}  # fmt: skip
PLACES = {"n_positions": 48}
SHARED = {"multi_query": True, "new_decoder_architecture": False, "num_kv_heads": 4}
GROUPED = {"new_decoder_architecture": True, "num_kv_heads": 2}
MIXED = {"intermediate_size_mlp": 128, "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 1}


@every(families.known_types())
def test_every_supported_type_is_read(kind: str) -> None:
    shapes = read_architecture({**PLAIN, **LINEAR, "model_type": kind})
    assert (shapes.hidden, shapes.layers, shapes.vocab) == (64, 2, 100)


@every(
    [
        ("qwen2", {}, "attn.qkv_bias", True), ("qwen3", {}, "attn.qkv_bias", False),
        ("qwen3", {}, "attn.qk_norm", True),
        ("llama", {"attention_bias": True}, "attn.out_bias", True),
        ("glm4", {"attention_bias": True}, "attn.out_bias", False),
        ("llama", {"head_dim": 32}, "attn.head_dim", 32), ("llama", {}, "attn.head_dim", 16),
        ("llama", {"num_key_value_heads": None}, "attn.kv_heads", 4), ("phi3", {}, "attn.fused_qkv", True),
        ("phi3", {}, "ffn.fused_gate_up", True), ("qwen", {}, "ffn.width", 64), ("llama", {}, "ffn.width", 128),
        ("gemma2", {}, "norms_per_layer", 4), ("gemma2", {}, "tied", True), ("llama", {}, "tied", False),
        ("gemma2", {"tie_word_embeddings": False}, "tied", False),
        ("gemma2", {"final_logit_softcapping": 30.0}, "logit_softcap", True),
        ("mistral", {"sliding_window": 4096}, "attn.window", 4096),
        ("mistral", {"sliding_window": None}, "attn.window", 0), ("gemma2", {}, "attn.window_share", 0.5),
        ("olmo3", {"layer_types": [*["sliding_attention"] * 3, "full_attention"]}, "attn.window_share", 0.75),
        ("qwen2", {"layer_types": ["full_attention"] * 4}, "attn.window_share", 0.0),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, "attn.window", 0),
        ("gpt_oss", {}, "attn.sinks", True), ("gemma", {}, "norm", "rms_fp32"), ("llama", {}, "norm", "rms"),
        ("cohere", {}, "parallel", True), ("cohere", {"use_qk_norm": False}, "attn.full_width_qk_norm", False),
        ("cohere", {}, "norms_per_layer", 1), ("llama", {}, "parallel", False),
        ("starcoder2", {}, "ffn.gated", False), ("starcoder2", {"use_bias": True}, "ffn.bias", True),
        ("starcoder2", {"use_bias": True}, "attn.out_bias", True), ("starcoder2", {}, "attn.qkv_bias", False),
        ("seed_oss", {"attention_bias": True, "attention_out_bias": False}, "attn.out_bias", False),
        ("llama4_text", MIXED, "ffn.experts_per_token", 8), ("llama4_text", MIXED, "ffn.width", 128),
        ("llama4_text", MIXED, "ffn.expert_width", 96), ("llama4_text", MIXED, "ffn.shared_width", 96),
        ("gpt2", PLACES, "position_rows", 48), ("gpt2", {}, "ffn.width", 128), ("gpt2", {}, "ffn.bias", True),
        ("gpt2", {}, "dropout", True), ("gpt2", {"resid_pdrop": 0.0}, "dropout", False),
        ("falcon", SHARED, "attn.kv_heads", 1), ("falcon", SHARED, "norms_per_layer", 1), ("falcon", {}, "tied", True),
        ("falcon", {**SHARED, **GROUPED}, "attn.kv_heads", 2), ("falcon", {**SHARED, **GROUPED}, "norms_per_layer", 2),
        ("falcon", {**SHARED, **GROUPED, "num_ln_in_parallel_attn": 1}, "norms_per_layer", 1),
        ("falcon", {**SHARED, "ffn_hidden_size": 96}, "ffn.width", 96), ("falcon", {}, "ffn.gated", False),
        ("llama4_text", MIXED, "moe_layers", 2), ("llama4_text", {**MIXED, "moe_layers": []}, "ffn.experts", 0),
        ("llama4_text", {**MIXED, "interleave_moe_layer_step": 2}, "kinds", (LayerKind(), LayerKind(experts=True))),
        ("llama4_text", {**MIXED, "moe_layers": [0]}, "kinds", (LayerKind(experts=True), LayerKind())),
        ("seed_oss", {}, "dropout", True), ("seed_oss", {"residual_dropout": 0.0}, "dropout", False),
    ],
)  # fmt: skip
def test_peculiarity(kind: str, extra: dict[str, Any], path: str, expected: object) -> None:
    value: Any = read_architecture({**PLAIN, "model_type": kind, **extra})
    for name in path.split("."):
        value = getattr(value, name)
    assert value == expected


@pytest.mark.parametrize(
    ("kind", "fields", "attending"),
    [("qwen3_5_text", {}, [1]), ("qwen3_5_text", {"layer_types": ["full_attention"] * 2}, [0, 1]),
     ("qwen3_5_text", {"layer_types": ["full_attention", "linear_attention"]}, [0]),
     ("qwen3_5_text", {"full_attention_interval": 4, "num_hidden_layers": 6}, [3]),
     ("lfm2", {"full_attention_interval": None}, [0, 1]), ("lfm2", {"full_attn_idxs": [0]}, [0]),
     ("lfm2", {"layer_types": ["conv", "full_attention"]}, [1]),
     ("minimax", {"full_attention_interval": None}, [1]), ("minimax_text_01", {"attn_type_list": [1, 0]}, [0]),
     ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 0}, [0]),
     ("granitemoehybrid", {"full_attention_interval": None}, []), ("falcon_h1", {}, [0, 1]),
     ("llama", {"layer_types": ["full_attention", "conv"]}, [])],
)  # fmt: skip
def test_which_layers_attend(kind: str, fields: dict[str, Any], attending: list[int]) -> None:
    kinds = read_architecture({**PLAIN, **LINEAR, "model_type": kind, **fields}).kinds
    assert [number for number, layer in enumerate(kinds) if layer.attends] == attending


def test_a_list_of_some_layers_is_not_read() -> None:
    with pytest.raises(RecipeError, match="`layer_types` names 1 layers, `num_hidden_layers` is 2"):
        read_architecture({**PLAIN, **LINEAR, "model_type": "lfm2", "layer_types": ["conv"]})


@pytest.mark.parametrize(
    ("fields", "width"),
    [({}, 256), ({"block_ff_dim": 12288}, 8192), ({"block_multiple_of": 8}, 88),
     ({"block_auto_adjust_ff_dim": False}, 128),
     ({"block_multiple_of": 8, "block_ffn_dim_multiplier": 1.5}, 128)],
)  # fmt: skip
def test_a_width_that_is_adjusted(fields: dict[str, Any], width: int) -> None:
    assert read_architecture({**PLAIN, **LINEAR, "model_type": "lfm2", **fields}).ffn.width == width


@pytest.mark.parametrize("value", ["2", [2], True, -1, float("nan"), float("inf"), 10**10])
def test_a_width_is_multiplied_by_a_number_alone(value: object) -> None:
    with pytest.raises(RecipeError, match="not a positive number"):
        read_architecture({**PLAIN, **LINEAR, "model_type": "lfm2", "block_ffn_dim_multiplier": value})


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe", "gemma4_text", "lfm2"])
def test_no_layers_are_counted_that_no_model_has(kind: str) -> None:
    with pytest.raises(RecipeError, match="`num_hidden_layers` is more than 10,000"):
        read_architecture({**DENSE, **LINEAR, "model_type": kind, "num_hidden_layers": 10**9})


def test_no_more_layers_are_without_experts_than_there_are() -> None:
    config = {**DENSE, "model_type": "deepseek_v3", "num_hidden_layers": 3}
    few, many = (read_architecture({**config, "first_k_dense_replace": number}) for number in (3, 10**9))
    assert parameter_count(few) == parameter_count(many)


def test_mixture_of_experts() -> None:
    ffn = read_architecture({**DENSE, "model_type": "qwen3_moe"}).ffn
    assert (ffn.experts, ffn.experts_per_token, ffn.expert_width) == (8, 2, 32)


def test_latent_attention() -> None:
    latent = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    attn = read_architecture({**PLAIN, **latent, "model_type": "deepseek_v2"}).attn
    assert (attn.kv_rank, attn.q_rank, attn.rope_dim, attn.head_dim, attn.value_dim) == (16, 0, 8, 24, 16)


@pytest.mark.parametrize("field", PLAIN)
def test_a_missing_field_is_named(field: str) -> None:
    config = {"model_type": "llama", **{key: value for key, value in PLAIN.items() if key != field}}
    if field == "num_key_value_heads":
        assert read_architecture(config).attn.kv_heads == 4
        return
    with pytest.raises(RecipeError, match=f"lacks '{field}'"):
        read_architecture(config)


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=r"model type `mamba` is not among the supported ones; .* --simulate"):
        read_architecture({"model_type": "mamba"})


@pytest.mark.parametrize("value", [[2, "x"], ["x"], [[2], [3]]])
def test_a_list_by_layer_that_holds_no_numbers_is_refused(value: list[object]) -> None:
    with pytest.raises(RecipeError, match="`moe_intermediate_size` is "):
        read_architecture({**DENSE, "model_type": "qwen3_moe", "moe_intermediate_size": value})


HEADS = {**PLAIN, "model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32}
CROSSED = {**PLAIN, "model_type": "mllama_text_model", "num_hidden_layers": 6}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (HEADS, [(5, 16, False), (1, 32, False)]),
        (HEADS | {"layer_types": ["full_attention"] + ["sliding_attention"] * 5}, [(1, 32, False), (5, 16, False)]),
        (HEADS | {"num_kv_shared_layers": 3}, [(3, 16, False), (2, 16, True), (1, 32, True)]),
        (HEADS | {"num_kv_shared_layers": 6}, [(5, 16, False), (1, 32, False)]),
        (CROSSED, [(3, 16, False), (1, 16, False), (2, 16, False)]),
    ],
)  # fmt: skip
def test_layers_of_other_shapes_are_counted_in_order(config: dict[str, Any], expected: list[tuple[int, ...]]) -> None:
    runs = read_architecture(config).layer_groups
    assert [(number, each.attn.head_dim, each.attn.shares_kv) for number, each in runs] == expected


def test_layers_that_read_what_towers_give_alone_have_norms_of_heads() -> None:
    runs = read_architecture(CROSSED | {"cross_attention_layers": [1, 4]}).layer_groups
    assert [(number, each.attn.cross_attention, each.attn.qk_norm) for number, each in runs] == [
        (1, False, False), (1, True, True), (2, False, False), (1, True, True), (1, False, False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (HEADS | {"layer_types": ["full_attention"]}, "does not name each of 6"),
        (HEADS | {"num_hidden_layers": 10**8}, "more than 10,000"),
        (HEADS | {"num_kv_shared_layers": "all"}, "not a positive whole number"),
        (CROSSED | {"cross_attention_layers": 3}, "not a list"),
    ],
)  # fmt: skip
def test_layers_that_cannot_be_told_apart_are_an_error(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        read_architecture(config)


SEEING = {**PLAIN, "model_type": "ernie4_5_vl_moe_text", "moe_num_experts": 8, "moe_k": 2, "num_hidden_layers": 4}


def test_experts_for_pictures_have_a_width_and_a_router_of_their_own() -> None:
    one, two = (
        parameter_count(read_architecture(SEEING | {"moe_intermediate_size": [32, width]})) for width in (16, 24)
    )
    assert two - one == 3 * 8 * 3 * 64 * 8  # layers, experts, matrices, hidden width, difference
    kinds = {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"], "moe_intermediate_size": [32, 16]}
    assert read_architecture(SEEING | kinds).ffn.dense_layers == 2


@pytest.mark.parametrize("widths", [32, [32], [32, 0]])
def test_experts_for_pictures_have_a_width(widths: object) -> None:
    with pytest.raises(RecipeError, match="moe_intermediate_size"):
        read_architecture(SEEING | {"moe_intermediate_size": widths})
