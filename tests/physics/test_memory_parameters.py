"""Parameter counts against the real transformers classes, built without weights."""

from __future__ import annotations

from typing import Any

import pytest

from validator.knowledge import families
from validator.physics import (
    Adapter,
    Architecture,
    AttentionShape,
    FeedForwardShape,
    LayerKind,
    Workload,
    linear_roles,
    parameter_count,
    trainable_parameter_count,
)
from validator.physics.gated_delta_net import GatedDeltaNet
from validator.physics.lightning_attention import LightningAttention

pytestmark = pytest.mark.slow  # they import torch

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "head_dim": 16,
    "pad_token_id": 0,
}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "num_key_value_heads": 4}
GQA = AttentionShape(4, 2, 16)
MLA = AttentionShape(4, 4, 24, value_dim=12, kv_rank=20, rope_dim=8)


def model(attn: AttentionShape = GQA, ffn: FeedForwardShape | None = None, **more: Any) -> Architecture:
    return Architecture(64, 3, 131, attn, ffn or FeedForwardShape(96), **more)


GATED = {"num_hidden_layers": 4}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4}  # fmt: skip
SHARED = FeedForwardShape(96, experts=8, experts_per_token=2, expert_width=24, shared_width=40, shared_gate=True)


def hybrid(delta: GatedDeltaNet, ffn: FeedForwardShape) -> Architecture:
    attn = AttentionShape(4, 2, 16, qk_norm=True, output_gate=True)
    linear, full = LayerKind(False, True, ffn.experts > 0), LayerKind(experts=ffn.experts > 0)
    return Architecture(64, 4, 131, attn, ffn, norm="rms_fp32", mixer=delta, kinds=(linear, linear, linear, full))


FAMILIES: list[tuple[str, dict[str, Any], Architecture]] = [
    ("llama", {}, model()),
    (
        "llama",
        {"attention_bias": True, "tie_word_embeddings": True},
        model(AttentionShape(4, 2, 16, qkv_bias=True, out_bias=True), tied=True),
    ),
    ("mistral", {}, model()),
    ("qwen2", {}, model(AttentionShape(4, 2, 16, qkv_bias=True))),
    ("qwen3", {"tie_word_embeddings": True}, model(AttentionShape(4, 2, 16, qk_norm=True), tied=True)),
    ("gemma2", {}, model(tied=True, norms_per_layer=4, logit_softcap=True)),
    ("gemma3_text", {}, model(AttentionShape(4, 2, 16, qk_norm=True), tied=True, norms_per_layer=4)),
    (
        "phi3",
        {"tie_word_embeddings": False},
        model(AttentionShape(4, 2, 16, fused_qkv=True), FeedForwardShape(96, fused_gate_up=True)),
    ),
    (
        "glm4",
        {"attention_bias": True},
        model(AttentionShape(4, 2, 16, qkv_bias=True), FeedForwardShape(96, fused_gate_up=True), norms_per_layer=4),
    ),
    (
        "starcoder2",
        {"use_bias": True, "tie_word_embeddings": True},
        model(
            AttentionShape(4, 2, 16, qkv_bias=True, out_bias=True),
            FeedForwardShape(96, gated=False, bias=True),
            tied=True,
            norm="layer",
        ),
    ),
    ("gemma", {}, model(tied=True, norm="rms_fp32")),
    ("olmo", {}, model(norm="bare")),
    ("cohere", {"use_qk_norm": False}, model(tied=True, norms_per_layer=1, norm="layer_fp32", parallel=True)),
    (
        "cohere",
        {"use_qk_norm": True},
        model(
            AttentionShape(4, 2, 16, full_width_qk_norm=True),
            tied=True,
            norms_per_layer=1,
            norm="layer_fp32",
            parallel=True,
        ),
    ),
    ("seed_oss", {}, model(AttentionShape(4, 2, 16, qkv_bias=True), dropout=True)),
    ("hunyuan_v1_dense", {"tie_word_embeddings": True}, model(AttentionShape(4, 2, 16, qk_norm=True), tied=True)),
    (
        "qwen3_moe",
        {**ROUTED, "num_experts": 8},
        model(
            AttentionShape(4, 2, 16, qk_norm=True),
            FeedForwardShape(96, experts=8, experts_per_token=2, expert_width=24),
        ),
    ),
    (
        "qwen2_moe",
        {**ROUTED, "num_experts": 8, "shared_expert_intermediate_size": 40},
        model(
            AttentionShape(4, 2, 16, qkv_bias=True),
            FeedForwardShape(96, experts=8, experts_per_token=2, expert_width=24, shared_width=40, shared_gate=True),
        ),
    ),
    ("qwen3_5_text", {**GATED, **DELTA}, hybrid(GatedDeltaNet(2, 4, 8, 12, 4), FeedForwardShape(96))),
    (
        "qwen3_5_moe_text",
        {**GATED, **DELTA, **ROUTED, "num_experts": 8, "shared_expert_intermediate_size": 40},
        hybrid(GatedDeltaNet(2, 4, 8, 12, 4), SHARED),
    ),
    (
        "qwen3_next",
        {**GATED, **DELTA, **ROUTED, "num_experts": 8, "shared_expert_intermediate_size": 40},
        hybrid(GatedDeltaNet(2, 4, 8, 12, 4, paired=True), SHARED),
    ),
    (
        "falcon",
        {"num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 112},
        model(AttentionShape(4, 2, 16, fused_qkv=True), FeedForwardShape(112, gated=False), tied=True, norm="layer"),
    ),
    (
        "falcon",
        {"multi_query": True},
        model(
            AttentionShape(4, 1, 16, fused_qkv=True),
            FeedForwardShape(256, gated=False),
            tied=True,
            norm="layer",
            norms_per_layer=1,
        ),
    ),
    (
        "llama4_text",
        {**GATED, "num_local_experts": 8, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 112},
        Architecture(
            64,
            4,
            131,
            GQA,
            FeedForwardShape(112, experts=8, experts_per_token=8, expert_width=96, shared_width=96),
            kinds=2 * (LayerKind(), LayerKind(experts=True)),
        ),
    ),
    (
        "minimax",
        {**GATED, "num_local_experts": 8, "block_size": 32},
        Architecture(
            64,
            4,
            131,
            GQA,
            FeedForwardShape(96, experts=8, experts_per_token=2, expert_width=96),
            mixer=LightningAttention(4, 16, 32),
            kinds=2 * (LayerKind(experts=True), LayerKind(attends=False, mixes=True, experts=True)),
        ),
    ),
    (
        "mixtral",
        {"num_local_experts": 8},
        model(ffn=FeedForwardShape(96, experts=8, experts_per_token=2, expert_width=96)),
    ),
    (
        "gpt_oss",
        {"num_local_experts": 8, "num_experts_per_tok": 2},
        model(
            AttentionShape(4, 2, 16, qkv_bias=True, out_bias=True, sinks=True),
            FeedForwardShape(96, experts=8, experts_per_token=2, expert_width=96, expert_bias=True, router_bias=True),
        ),
    ),
    (
        "deepseek_v2",
        {
            **ROUTED,
            **LATENT,
            "q_lora_rank": None,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
        model(
            MLA,
            FeedForwardShape(
                96, experts=8, experts_per_token=2, expert_width=24, shared_width=48, dense_layers=1, router_linear=True
            ),
        ),
    ),
    (
        "deepseek_v3",
        {
            **ROUTED,
            **LATENT,
            "q_lora_rank": 28,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
        model(
            AttentionShape(4, 4, 24, value_dim=12, q_rank=28, kv_rank=20, rope_dim=8),
            FeedForwardShape(
                96,
                experts=8,
                experts_per_token=2,
                expert_width=24,
                shared_width=24,
                dense_layers=1,
            ),
        ),
    ),
]


def build(family: str, more: dict[str, Any]) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    taken = {name: size for name, size in SHAPE.items() if name != "head_dim" or family != "falcon"}  # it divides there
    config = transformers.AutoConfig.for_model(family, **{**taken, **more})
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(("family", "more", "arch"), FAMILIES, ids=[f"{f}-{len(m)}" for f, m, _ in FAMILIES])
def test_parameters_are_those_of_the_real_class(family: str, more: dict[str, Any], arch: Architecture) -> None:
    real = {id(p): p.numel() for p in build(family, more).parameters()}
    assert parameter_count(arch) == sum(real.values())


@pytest.mark.parametrize(("family", "more", "arch"), FAMILIES, ids=[f"{f}-{len(m)}" for f, m, _ in FAMILIES])
def test_adapters_on_all_linear_modules_have_the_real_number_of_parameters(
    family: str, more: dict[str, Any], arch: Architecture
) -> None:
    real = build(family, more)
    inner = [
        (name.rsplit(".", 1)[-1], module)
        for name, module in real.named_modules()
        if "Linear" in type(module).__name__ and "lm_head" not in name
    ]
    roles = families.family_of_type(family).roles
    assert {role for name, _ in inner for role in roles[name]} == set(linear_roles(arch))
    work = Workload(adapter=Adapter(rank=4, targets=linear_roles(arch)))
    expected = sum(4 * (module.in_features + module.out_features) for _, module in inner)
    assert trainable_parameter_count(arch, work) == expected
