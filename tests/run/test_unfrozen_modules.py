"""The modules whose own weights train: numbers of parameters derived by hand, and those of the real LLaMA-Factory and
PEFT on tiny models."""

from __future__ import annotations

from typing import Any

import pytest

from validator.knowledge import models
from validator.knowledge.models import Model, find_model
from validator.physics import trainable_parameter_count
from validator.run.physics_inputs import make_workload
from validator.run.prediction import predict
from validator.run.settings import run_of_values
from validator.run.unfrozen_modules import saved_modules

QWEN = "Qwen/Qwen3-32B"
TABLE, ATTENTION, FEED_FORWARD = 151936 * 5120, 5120 * (8192 + 2 * 1024 + 8192), 3 * 5120 * 25600
LAYER = ATTENTION + FEED_FORWARD + 2 * 5120 + 2 * 128
ADAPTERS = 64 * 8 * (5120 + 8192)  # on q_proj


def trained(model: Model, settings: dict[str, Any]) -> int:
    run = run_of_values({"stage": "sft", "do_train": True, **settings})
    return trainable_parameter_count(model.arch, make_workload(run, model, None))


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 2 * LAYER), ({"freeze_trainable_layers": -3}, 3 * LAYER), ({"freeze_trainable_layers": 100}, 64 * LAYER),
        ({"freeze_trainable_layers": 4, "use_llama_pro": True}, 4 * LAYER),
        ({"freeze_extra_modules": "embed_tokens"}, 2 * LAYER + TABLE),
        ({"freeze_extra_modules": "lm_head,norm", "freeze_trainable_layers": 1}, LAYER + TABLE),
        ({"freeze_trainable_modules": "mlp"}, 2 * FEED_FORWARD),
        ({"freeze_trainable_modules": "self_attn"}, 2 * ATTENTION),  # without the norms of its heads
        ({"freeze_trainable_modules": "self_attn,mlp"}, 2 * (ATTENTION + FEED_FORWARD)),
    ],
)  # fmt: skip
def test_freeze_tuning_trains_what_it_names(settings: dict[str, Any], count: int) -> None:
    assert trained(find_model(QWEN), {"finetuning_type": "freeze", **settings}) == count


@pytest.mark.parametrize(
    ("additional_target", "count"),
    [
        ("embed_tokens", TABLE), ("lm_head", TABLE), ("embed_tokens,lm_head", 2 * TABLE), ("tokens", TABLE),
        ("model.embed_tokens", TABLE), ("head", TABLE), ("embed", 0), ("norm", 0),
        ("layers.0.mlp.down_proj", 5120 * 25600), ("0.mlp", 7 * FEED_FORWARD),  # 0, 10, 20 and so on
    ],
)  # fmt: skip
def test_additional_targets_name_ends_of_names(additional_target: str, count: int) -> None:
    settings = {"finetuning_type": "lora", "lora_target": "q_proj", "additional_target": additional_target}
    assert trained(find_model(QWEN), settings) == ADAPTERS + count


def test_names_without_a_module_are_told() -> None:
    run = run_of_values({"finetuning_type": "lora", "additional_target": "embed,lm_head,.*norm"})
    assert saved_modules(run, find_model(QWEN), fused=True).lost == ("embed", ".*norm")


def test_gradients_pass_frozen_layers_above_the_first_that_trains() -> None:
    def memory(**settings: Any) -> float:
        values = {
            "model_name_or_path": QWEN,
            "stage": "sft",
            "do_train": True,
            "finetuning_type": "freeze",
            "bf16": True,
        }
        estimate = predict(run_of_values({**values, **settings})).device_memory
        assert estimate
        return estimate.expected

    last, first = memory(), memory(freeze_trainable_layers=-2)
    assert first > 1.2 * last
    assert memory(use_llama_pro=True, freeze_trainable_layers=2) > 1.1 * last
    table = 16 * TABLE  # bytes of its weights, gradients and moments
    assert memory(freeze_extra_modules="embed_tokens") > first + 0.7 * table


TINY = {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 131, "head_dim": 16}  # fmt: skip
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": 24}  # fmt: skip
KINDS = {"qwen3": TINY, "qwen3_moe": {**TINY, **MIXTURE}, "qwen3_next": {**TINY, **MIXTURE, **DELTA}}
SETTINGS: list[dict[str, Any]] = [
    *({"finetuning_type": "freeze", **each} for each in (
        {"freeze_trainable_layers": 2}, {"freeze_trainable_layers": -1},
        {"freeze_trainable_layers": 2, "use_llama_pro": True}, {"freeze_extra_modules": "embed_tokens"},
        {"freeze_extra_modules": "lm_head"}, {"freeze_trainable_layers": 0, "freeze_extra_modules": "embed_tokens"},
    )),
    *({"finetuning_type": "lora", "lora_target": "q_proj", "additional_target": each} for each in (
        "embed_tokens", "lm_head", "embed_tokens,lm_head", "tokens", "embed", "model.embed_tokens", "head",
        "mlp.down_proj",
    )),
    *({"finetuning_type": "lora", "use_llama_pro": True, "freeze_trainable_layers": 2, "lora_target": each}
      for each in ("q_proj", "all")),
]  # fmt: skip


@pytest.mark.sample(one_in=3, whole_for=["release/constraints.txt", "validator/run/unfrozen_modules.py"])
@pytest.mark.slow  # it imports torch and LLaMA-Factory
@pytest.mark.parametrize("kind", KINDS)
def test_what_trains_is_what_llamafactory_and_peft_train(kind: str) -> None:
    torch = pytest.importorskip("torch")
    hparams = pytest.importorskip("llamafactory.hparams")
    from llamafactory.model.adapter import init_adapter
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[kind](**KINDS[kind], tie_word_embeddings=False)
    known = models._model_of_config(kind, {**config.to_dict(), "model_type": kind})
    for settings in SETTINGS:
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        arguments = hparams.ModelArguments(model_name_or_path="none")
        model = init_adapter(config, model, arguments, hparams.FinetuningArguments(**settings), True)
        assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trained(known, settings), settings
