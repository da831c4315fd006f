"""Which modules get an adapter: numbers of trained parameters, derived by hand, and those of the real LLaMA-Factory and
PEFT on tiny models."""

from __future__ import annotations

from typing import Any

import pytest

from validator.knowledge import models
from validator.knowledge.models import Model, find_model
from validator.physics import trainable_parameter_count
from validator.run.adapted_modules import adapted_modules
from validator.run.physics_inputs import make_workload
from validator.run.prediction import predict
from validator.run.settings import RunSettings, run_of_values

FREE = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}


def run_of(model: Model, lora_target: str, **settings: Any) -> RunSettings:
    values = {"model_name_or_path": model.name, "stage": "sft", "do_train": True, "lora_target": lora_target}
    return run_of_values({"finetuning_type": "lora", **values, **settings})


def trained(model: Model, run: RunSettings, fused: bool = True) -> int:
    return trainable_parameter_count(model.arch, make_workload(run, model, None, "grouped" if fused else "separate"))


# Model, target, other settings, whether experts are one tensor, parameters that train
COUNTS: list[tuple[str, str, dict[str, Any], bool, int]] = [
    ("Qwen/Qwen3-32B", "layers.0.self_attn.q_proj", {"lora_rank": 256}, True, 256 * (5120 + 8192)),
    ("Qwen/Qwen3-32B", "model.layers.63.mlp.down_proj", {}, True, 8 * (5120 + 25600)),
    ("Qwen/Qwen3-32B", "layers.0.self_attn.q_proj,layers.0.mlp.up_proj", {}, True, 8 * (5120 + 8192 + 5120 + 25600)),
    ("Qwen/Qwen3-32B", "self_attn.q_proj", {}, True, 64 * 8 * (5120 + 8192)),
    ("Qwen/Qwen3-32B", "q_proj,wo", {}, True, 64 * 8 * (5120 + 8192)),
    ("Qwen/Qwen3-32B", "q_proj", {"use_llama_pro": True, "freeze_trainable_layers": 4}, True, 4 * 8 * (5120 + 8192)),
    ("Qwen/Qwen3-32B", "lm_head", {}, True, 8 * (5120 + 151936)),
    ("Qwen/Qwen3-32B", "embed_tokens,layers.1.self_attn.q_proj", {}, True, 8 * (151936 + 5120 + 5120 + 8192)),
    ("Qwen/Qwen3-30B-A3B", "experts.3.gate_proj", {}, False, 48 * 8 * (2048 + 768)),
    ("Qwen/Qwen3-30B-A3B", "layers.0.mlp.experts.3.gate_proj", {}, False, 8 * (2048 + 768)),
    ("Qwen/Qwen3-30B-A3B", "gate_proj", {}, False, 48 * 128 * 8 * (2048 + 768)),
    ("Qwen/Qwen3-30B-A3B", "mlp.gate", {}, False, 48 * 8 * (2048 + 128)),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "linear_attn.out_proj", {}, True, 36 * 8 * (4096 + 2048)),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "layers.3.self_attn.q_proj", {}, True, 8 * (2048 + 8192)),
    ("openai-community/gpt2-xl", "attn.c_proj", {}, True, 48 * 8 * (1600 + 1600)),
    ("openai-community/gpt2-xl", "h.0.mlp.c_proj", {}, True, 8 * (6400 + 1600)),
    ("microsoft/phi-4", "31.self_attn.qkv_proj", {}, True, 8 * (5120 + 7680)),
    ("Qwen/Qwen2.5-VL-7B-Instruct", "model.language_model.layers.27.self_attn.q_proj", {}, True, 8 * (3584 + 3584)),
    ("Qwen/Qwen2.5-VL-7B-Instruct", "7.self_attn.q_proj", {}, True, 3 * 8 * (3584 + 3584)),  # 7, 17 and 27
    ("Qwen/Qwen2.5-VL-7B-Instruct", "blocks.3.attn.qkv", FREE, True, 8 * (1280 + 3840)),
    ("google/gemma-3-4b-it", "language_model.layers.0.mlp.up_proj", {}, True, 8 * (2560 + 10240)),
]


@pytest.mark.parametrize(("name", "lora_target", "settings", "fused", "count"), COUNTS)
def test_as_many_parameters_train_as_the_targets_name(
    name: str, lora_target: str, settings: dict[str, Any], fused: bool, count: int
) -> None:
    model = find_model(name)
    assert trained(model, run_of(model, lora_target, **settings), fused) == count


@pytest.mark.parametrize(
    ("name", "lora_target", "refused"),
    [
        ("Qwen/Qwen3-32B", "layers.64.self_attn.q_proj", ""), ("Qwen/Qwen3-32B", "q_pro", ""),
        ("Qwen/Qwen3-32B", "mlp.q_proj", ""), ("Qwen/Qwen3-32B", ".*q_proj", ""),
        ("Qwen/Qwen3-32B", "layers.0", "model.layers.0"), ("Qwen/Qwen3-32B", "q_norm,q_proj", "q_norm"),
        ("Qwen/Qwen3-30B-A3B", "gate", "mlp.gate"), ("Qwen/Qwen3-30B-A3B", "mlp.experts.3.gate_proj", ""),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "layers.28.self_attn.q_proj", ""),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "attn", "self_attn"), ("Qwen/Qwen2.5-VL-7B-Instruct", "blocks.3", ""),
    ],
)  # fmt: skip
def test_targets_that_name_nothing_or_no_layer_are_told_apart(name: str, lora_target: str, refused: str) -> None:
    model = find_model(name)
    adapted = adapted_modules(run_of(model, lora_target), model, fused=True)
    assert adapted.none == (not refused)
    assert adapted.refused.endswith(refused)


def device_memory(name: str, lora_target: str, **settings: Any) -> float:
    memory = predict(run_of(find_model(name), lora_target, bf16=True, **settings)).device_memory
    assert memory
    return memory.expected


def test_layers_without_an_adapter_are_not_recomputed() -> None:
    qwen, last = "Qwen/Qwen3-8B", "layers.35.self_attn.q_proj"
    everywhere, first = device_memory(qwen, "q_proj"), device_memory(qwen, "layers.0.self_attn.q_proj")
    assert first > 1.2 * everywhere
    # peft asks for gradients of the embedding's output, so they run through all layers, too
    assert device_memory(qwen, last) > 0.95 * first
    # and not if the model is quantized, or if nothing is recomputed
    quantized = {"quantization_bit": 4, "quantization_method": "bnb"}
    assert device_memory(qwen, last, **quantized) < device_memory(qwen, "q_proj", **quantized)
    saved = {"disable_gradient_checkpointing": True}
    assert device_memory(qwen, last, **saved) < 0.8 * device_memory(qwen, "q_proj", **saved)
    # the layers of a hybrid whose kind no target names
    hybrid = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    assert device_memory(hybrid, "q_proj,v_proj") > device_memory(hybrid, "q_proj,v_proj,in_proj_qkvz")


TEXT = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 131}  # fmt: skip
GRID = {"depth": 4, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 40, "num_heads": 4}
PLAIN = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4,
         "image_size": 56, "patch_size": 14}  # fmt: skip
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4}  # fmt: skip
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
          "first_k_dense_replace": 1, "n_shared_experts": 1}  # fmt: skip
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
NARROW = {"head_dim": 16}
TINY: dict[str, dict[str, Any]] = {
    "qwen3": {**TEXT, **NARROW},
    "llama": TEXT,
    "phi3": {**TEXT, "pad_token_id": 0},
    "gpt2": {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 131, "n_positions": 64},
    "bloom": {"n_layer": 4, "hidden_size": 64, "n_head": 4, "vocab_size": 131},
    "qwen3_moe": {**TEXT, **NARROW, **MIXTURE},
    "glm4_moe": {**TEXT, **NARROW, **SHARED},
    "deepseek_v3": {**TEXT, "num_key_value_heads": 4, **SHARED, **LATENT},
    "qwen3_next": {**TEXT, **NARROW, **MIXTURE, "shared_expert_intermediate_size": 24, **DELTA},
    "jamba": {**TEXT, "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
              "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 4, "mamba_dt_rank": 8,
              "use_mamba_kernels": False},
    "lfm2": {**TEXT, "block_auto_adjust_ff_dim": False, "full_attn_idxs": [1],
             "layer_types": ["conv", "full_attention", "conv", "conv"]},
    "qwen2_5_vl": {"text_config": TEXT, "vision_config": GRID},
    "qwen3_vl": {"text_config": {**TEXT, **NARROW},
                 "vision_config": {**GRID, "num_position_embeddings": 16, "deepstack_visual_indexes": [1, 2]}},
    "qwen3_5": {"text_config": {**TEXT, **NARROW, **DELTA}, "vision_config": {**GRID, "num_position_embeddings": 16}},
    "gemma3": {"text_config": {**TEXT, **NARROW},
               "vision_config": {**PLAIN, "model_type": "siglip_vision_model", "vision_use_head": False}},
    "llava": {"text_config": {**TEXT, "model_type": "llama"},
              "vision_config": {**PLAIN, "model_type": "clip_vision_model"}},
    "internvl": {"text_config": {**TEXT, "model_type": "qwen2"},
                 "vision_config": {**PLAIN, "image_size": [56, 56], "patch_size": [14, 14]}},
}  # fmt: skip
SEEING = [kind for kind, config in TINY.items() if "vision_config" in config]
TARGETS = """all|q_proj|q_proj,v_proj|q_proj,k_proj,v_proj,o_proj|gate_proj,up_proj,down_proj|qkv_proj|gate_up_proj
proj|c_attn,c_proj|c_proj|mlp.c_proj|attn.c_proj|self_attn.q_proj|layers.0.self_attn.q_proj|model.layers.0.self_attn.q_proj
layers.3.self_attn.o_proj|3.self_attn.o_proj|layers.1.mlp.down_proj,layers.2.mlp.up_proj|language_model.layers.0.mlp.up_proj
model.language_model.layers.3.self_attn.q_proj|layers.40.self_attn.q_proj|h.0.attn.c_attn|transformer.h.2.mlp.c_fc,c_attn
self_attn|mlp|layers.0|layers|o_proj,wo|lm_head|embed_tokens|wte|lm_head,q_proj|.*q_proj|layers.[0-3].self_attn.q_proj
q_norm|attn|visual|qkv|blocks.2.attn.qkv|merger|router|gate|in_proj_qkvz|linear_attn.out_proj|out_proj|in_proj_qkv
layers.0.linear_attn.out_proj|shared_expert.up_proj|shared_experts.down_proj,q_b_proj|x_proj|mamba.in_proj|w1|conv.in_proj
query_key_value|1.self_attention.dense|experts|all,q_proj|all-linear|vision_tower|fc1|mlp.fc1|linear_fc1""".replace(
    "\n", "|"
)
REAL = [*((kind, {}) for kind in TINY), *((kind, FREE) for kind in SEEING)]


@pytest.mark.sample(one_in=6, whole_for=["release/constraints.txt", "validator/knowledge/module_names.py"])
@pytest.mark.slow  # it imports torch and LLaMA-Factory
@pytest.mark.parametrize(("kind", "settings"), REAL, ids=lambda each: each if isinstance(each, str) else "-".join(each))
def test_what_gets_an_adapter_is_what_llamafactory_and_peft_adapt(kind: str, settings: dict[str, Any]) -> None:
    pytest.importorskip("llamafactory")
    from validator.simulation.model_loading import load_model
    from validator.simulation.simulation_request import SimulationRequest

    config = {"model_type": kind, **TINY[kind], **({"tie_word_embeddings": False} if kind in SEEING else {})}
    model, counted = models._model_of_config(kind, config), 0
    for target in TARGETS.split("|"):
        run = run_of(model, target, **settings)
        adapted = adapted_modules(run, model, fused=True)
        named = {part.rpartition(".")[2] for part in target.split(",")}
        refused = model.refused and (target == "all" or model.refused & named)
        if adapted.none or adapted.refused or refused or (target == "all" and model.family.no_nn_linear):
            with pytest.raises(ValueError, match=r"[Tt]arget.modules?\b"):
                load_model(SimulationRequest(model=config, lora_targets=target, **settings), real=True)
            continue
        loaded = load_model(SimulationRequest(model=config, lora_targets=target, **settings), real=True).model
        assert sum(p.numel() for p in loaded.parameters() if p.requires_grad) == trained(model, run), target
        counted += 1
    assert counted >= 5
