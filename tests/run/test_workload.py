"""From a recipe's words to the terms of the memory formulas, as LLaMA-Factory 0.9.5 executes them."""

from __future__ import annotations

from typing import Any

import pytest
from support.every import every

from validator.knowledge import models, tables
from validator.physics import DDP, FSDP_FULL_SHARD, FSDP_SHARD_GRAD_OP, ZERO_2, ShardingStrategy, Workload
from validator.physics.optimizer import optimizer_state_bytes
from validator.physics.training_step import TrainingStep
from validator.physics.workload import Rollout, SdpaInputs
from validator.recipe.recipe_file import Document
from validator.run.prediction import predict
from validator.run.settings import resolve

ZERO = {"zero_optimization": {"stage": 2}}
OFFLOAD = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
GALORE = {"use_galore": True, "finetuning_type": "full"}


def workload(machine: str = "8xa100-80g", model: str = "Qwen/Qwen2.5-7B-Instruct", **values: Any) -> Workload:
    document = Document("x.yaml", values={"model_name_or_path": model, **values})
    found = predict(resolve(document, machine)).workload
    assert found is not None
    return found


@every(
    [
        ({"bf16": True}, "precision", "amp"), ({}, "precision", "fp32"), ({"pure_bf16": True}, "precision", "pure"),
        ({"bf16": True, "deepspeed": ZERO}, "precision", "engine"), ({"deepspeed": ZERO}, "precision", "fp32"),
        ({"quantization_bit": 4}, "quant_bits", 4), ({"quantization_bit": 8}, "quant_bits", 8), ({}, "quant_bits", 0),
        ({"stage": "dpo"}, "sequences_per_sample", 2), ({"stage": "rm"}, "sequences_per_sample", 2),
        ({}, "sequences_per_sample", 1),
        # A second copy of the model: not for LoRA, not for losses without a reference.
        ({"stage": "dpo"}, "reference_copies", 0), ({"stage": "dpo", "finetuning_type": "full"}, "reference_copies", 1),
        ({"stage": "dpo", "finetuning_type": "full", "pref_loss": "orpo"}, "reference_copies", 0),
        ({"stage": "kto", "finetuning_type": "full"}, "reference_copies", 1),
        ({"disable_gradient_checkpointing": True}, "checkpointing", "off"),
        ({"gradient_checkpointing": False}, "checkpointing", "layer"),
        ({"disable_gradient_checkpointing": True, "gradient_checkpointing": True}, "checkpointing", "layer"),
        ({"enable_liger_kernel": True}, "loss", "fused"),
        ({"enable_liger_kernel": True, "stage": "dpo"}, "loss", "upcast"),
        ({"flash_attn": "fa2"}, "attention", "flash"), ({"flash_attn": "disabled"}, "attention", "eager"),
        ({}, "attention", "sdpa"),
        ({"torch_compile": True}, "compiled", True), ({"torch_compile_mode": "default"}, "compiled", True),
        ({"torch_compile": False}, "compiled", False),
        # Answers of PPO follow the prompt; `max_length` counts both.
        ({"stage": "ppo"}, "rollout", Rollout(1024)), ({"stage": "ppo"}, "length", 2048 + 1024),
        ({"stage": "ppo", "max_new_tokens": 0, "max_length": 3000}, "rollout", Rollout(3000 - 2048)),
        ({"stage": "ppo", "ppo_buffer_size": 2, "ppo_epochs": 1}, "rollout", Rollout(1024, 2, 1)),
        ({"stage": "dpo"}, "rollout", None),
        ({"eval_strategy": "no"}, "eval_batch", 0), ({"eval_strategy": "steps"}, "eval_batch", 8),
        ({"optim": "adamw_8bit"}, "optimizer", "adamw_8bit"),
        ({"use_galore": True, "finetuning_type": "full"}, "optimizer", "galore"),
        ({"optim": "paged_adamw_8bit"}, "optimizer", "paged_adamw_8bit"), ({}, "optimizer", "adamw"),
        ({"optim": "adamw_torch"}, "optimizer", "adamw_foreach"), ({"optim": "lion_32bit"}, "optimizer", "lion"),
        ({"optim": "adamw_8bit", "deepspeed": OFFLOAD}, "optimizer", "adamw"),
        ({"optim": "lion_32bit", "deepspeed": OFFLOAD}, "optimizer", "lion"),
        ({"optim": "sgd", "deepspeed": {"optimizer": {"type": "AdamW"}}}, "optimizer", "adamw"),
        ({"use_muon": True}, "optimizer", "muon"), ({"use_muon": True, "deepspeed": OFFLOAD}, "optimizer", "adamw"),
        ({**GALORE, "optim": "adamw_8bit"}, "optimizer", "galore_8bit"),
        ({**GALORE, "optim": "adafactor"}, "optimizer", "galore_adafactor"),
        ({**GALORE, "galore_target": "self_attn,mlp"}, "optimizer", "galore"),
        ({**GALORE, "galore_target": "self_attn"}, "optimizer", "adamw"),
        ({**GALORE, "galore_layerwise": True}, "layerwise_update", True), (GALORE, "layerwise_update", False),
        ({"optim": "lomo", "finetuning_type": "full"}, "layerwise_update", True),
        ({"packing": True}, "pads_batches", False), ({"stage": "pt"}, "pads_batches", False),
        ({}, "pads_batches", True),
        ({"packing": True, "stage": "dpo"}, "pads_batches", True), ({"neat_packing": True}, "pads_batches", True),
        # The ASFT loss holds the logits of a reference beside the model's own.
        ({"use_asft_loss": True, "finetuning_type": "full"}, "reference_copies", 1),
        ({"use_asft_loss": True}, "needs_full_logits", True), ({"use_dft_loss": True}, "needs_full_logits", False),
        # LoRA+ comes before Muon, and takes what `optim` names.
        ({"loraplus_lr_ratio": 16.0, "use_muon": True}, "optimizer", "adamw"),
        ({"optim": "adamw_8bit", "deepspeed": {**OFFLOAD, "zero_force_ds_cpu_optimizer": False}}, "optimizer",
         "adamw_8bit"),
        ({"use_unsloth_gc": True}, "checkpointing", "offloaded"),
        ({"freeze_trainable_layers": -3, "finetuning_type": "freeze"}, "trainable_layers", 3),
        ({"freeze_trainable_layers": 99, "finetuning_type": "freeze"}, "trainable_layers", 28),
    ],
)  # fmt: skip
def test_setting(values: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(workload(**values), field) == expected


def test_attention_is_what_the_device_runs() -> None:
    """A V100 has no FlashAttention-2, so LLaMA-Factory goes on without it."""
    assert workload("8xv100-32g", flash_attn="fa2") == workload("8xv100-32g")


@pytest.mark.parametrize(
    ("target", "roles"),
    [
        ("q_proj,v_proj", {"q", "v"}),
        ("all", {"q", "k", "v", "o", "gate", "up", "down"}),
        (["down_proj"], {"down"}),
        ("all,q_proj", {"q"}),
    ],
)
def test_targets(target: object, roles: set[str]) -> None:
    assert set(workload(lora_target=target).adapter.targets) == roles


def test_oft_takes_its_layers_from_lora_target() -> None:
    values = {"finetuning_type": "oft", "lora_target": "q_proj", "oft_target": "v_proj"}
    assert workload(**values).adapter.targets == ("q",)


def test_packing_changes_nothing_where_nothing_is_packed() -> None:
    for stage in ("dpo", "rm", "kto"):
        assert workload(stage=stage, packing=True) == workload(stage=stage, packing=False)


def test_sharding_takes_the_machine_and_the_json() -> None:
    found = workload("2x4xa100-80g", deepspeed=ZERO).sharding
    assert (found.nodes, found.devices_per_node, found.strategy) == (2, 4, ZERO_2)
    assert workload().sharding.strategy == DDP
    fsdp = workload(fsdp="full_shard auto_wrap offload").sharding
    assert (fsdp.strategy, fsdp.offload_parameters) == (FSDP_FULL_SHARD, True)
    assert not fsdp.sharded_load


@pytest.mark.parametrize(
    ("words", "strategy", "devices"),
    [
        ("full_shard auto_wrap", FSDP_FULL_SHARD, 16), ("full_shard", FSDP_SHARD_GRAD_OP, 16),
        ("shard_grad_op auto_wrap", FSDP_SHARD_GRAD_OP, 16), ("hybrid_shard auto_wrap", FSDP_FULL_SHARD, 8),
        ("hybrid_shard_zero2 auto_wrap", FSDP_SHARD_GRAD_OP, 8), ("no_shard", DDP, 16),
    ],
)  # fmt: skip
def test_words_of_fsdp(words: str, strategy: ShardingStrategy, devices: int) -> None:
    found = workload("2x8xa100-80g", fsdp=words).sharding
    assert (found.strategy, found.shard_devices, found.world_size) == (strategy, devices, 16)


def test_every_optimizer_of_the_release_but_two_has_states() -> None:
    stateless = set()
    for name in tables.json_table("arguments")["arguments"]["optim"]["choices"]:
        work = workload(optim=name, finetuning_type="full", bf16=True)
        if not optimizer_state_bytes(TrainingStep(models.find_model("qwen7b").arch, work)):
            stateless.add(name)
        projected = name.startswith(("galore", "apollo"))
        assert work.optimizer != "adamw" or projected or name in ("adamw_torch_fused", "adamw_torch_xla")
    assert stateless == {"lomo", "sgd"}


def test_new_tokens_train_embedding_and_head() -> None:
    adapter = workload(resize_vocab=True).adapter
    assert (adapter.full_embedding, adapter.full_head) == (True, True)
    one = workload(additional_target="embed_tokens").adapter
    assert (one.full_embedding, one.full_head) == (True, False)


def test_a_quantized_checkpoint_brings_its_own_bits() -> None:
    found = workload(model="Qwen/Qwen2.5-7B-Instruct", quantization_bit=4, quantization_method="gptq")
    assert found.quant_bits == 0


@pytest.mark.parametrize(
    ("header", "optimizer"),
    [
        ({}, "adamw"), ({"torch": "<2.8"}, "adamw_foreach"), ({"torch": "2.6.0"}, "adamw_foreach"),
        ({"torch": ">=2.8"}, "adamw"), ({"torch": "new"}, "adamw"), ({"transformers": "4.52.4"}, "adamw_foreach"),
        ({"transformers": "4.57.1"}, "adamw"), ({"llamafactory": ">=0.9.3"}, "adamw_foreach"),
    ],
)  # fmt: skip
def test_the_default_optimizer_is_that_of_the_releases(header: dict[str, str], optimizer: str) -> None:
    document = Document("x.yaml", values={"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct"}, header=header)
    work = predict(resolve(document)).workload
    assert work is not None
    assert work.optimizer == optimizer


@pytest.mark.parametrize(
    ("release", "half", "stored"), [("0.9.3", True, 2.0), ("0.9.4", True, 4.0), ("0.9.3", False, 4.0)]
)
def test_a_checkpoint_in_32_bits_is_halved_before_0_9_4(release: str, half: bool, stored: float) -> None:
    values = {"model_name_or_path": "HuggingFaceTB/SmolLM-135M", "bf16": half}
    work = predict(resolve(Document("x.yaml", values=values, header={"llamafactory": release}))).workload
    assert work is not None
    assert work.base_bytes == stored


@pytest.mark.parametrize(
    ("header", "given", "loss", "supervised"),
    [
        ({}, SdpaInputs(), "upcast", False),
        ({"llamafactory": "0.9.4"}, SdpaInputs(), "upcast", False),
        ({"transformers": "4.57.1"}, SdpaInputs(), "upcast", False),
        ({"llamafactory": "0.9.5", "transformers": "4.55.4"}, SdpaInputs(contiguous_copies=True), "upcast", False),
        (
            {"llamafactory": "0.9.3"},
            SdpaInputs(kv_repeated=True, contiguous_copies=True, additive_mask=True),
            "upcast",
            True,
        ),
        (
            {"transformers": "4.48.3"},
            SdpaInputs(kv_repeated=True, contiguous_copies=True, additive_mask=True),
            "shifted",
            True,
        ),
        ({"transformers": "4.45.2"}, SdpaInputs(kv_repeated=True, additive_mask=True), "shifted", True),
    ],
)
def test_older_releases_give_attention_and_losses_more(
    header: dict[str, str], given: SdpaInputs, loss: str, supervised: bool
) -> None:
    values = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "stage": "dpo"}
    work = predict(resolve(Document("x.yaml", values=values, header=header))).workload
    assert work is not None
    assert (work.sdpa_inputs, work.loss, work.adds_supervised_loss) == (given, loss, supervised)


@pytest.mark.parametrize(
    ("values", "loss"),
    [
        ({"per_device_train_batch_size": 2}, "shifted"),
        ({"per_device_train_batch_size": 1}, "upcast"),  # logits of one sequence are shifted without a copy
        ({"per_device_train_batch_size": 2, "enable_liger_kernel": True}, "fused"),
    ],
)
def test_what_older_releases_make_of_a_loss(values: dict[str, Any], loss: str) -> None:
    values = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", **values}
    for release, raised in (("4.48.3", False), ("4.45.2", True)):
        work = predict(resolve(Document("x.yaml", values=values, header={"transformers": release}))).workload
        assert work is not None
        assert (work.loss, work.adds_supervised_loss, work.logits_upcast) == (loss, False, raised)
