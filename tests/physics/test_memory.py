"""Device memory of single runs: where a term comes from, and where it goes."""

from __future__ import annotations

import pytest

from validator.physics import (
    FSDP_FULL_SHARD,
    ZERO_3,
    Architecture,
    AttentionShape,
    FeedForwardShape,
    Sharding,
    Workload,
    estimate_device_memory,
    estimate_host_memory,
    parameter_count,
)
from validator.physics.estimate import DeviceTerm
from validator.physics.peaks import loading_phase
from validator.physics.training_step import TrainingStep
from validator.physics.weights import base_weights_on_device
from validator.physics.workload import Method

QWEN_32B = Architecture(5120, 64, 152064, AttentionShape(40, 8, 128, qkv_bias=True), FeedForwardShape(27648))
SMALL = Architecture(2048, 16, 128256, AttentionShape(32, 8, 64), FeedForwardShape(8192), tied=True)


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor", "galore", "adamw_8bit", "muon"])
def test_leaner_optimizers_come_before_adamw(optimizer: str) -> None:
    work = Workload(method="full", precision="pure", optimizer=optimizer, optimizer_rank=64, length=64)
    adamw = estimate_device_memory(SMALL, work._replace(optimizer="adamw")).terms.get(DeviceTerm.OPTIMIZER, 0.0)
    assert estimate_device_memory(SMALL, work).terms.get(DeviceTerm.OPTIMIZER, 0.0) <= adamw


def test_a_value_head_needs_logits_but_no_gradient_of_them() -> None:
    rewards = Workload(length=4096, sequences_per_sample=2, value_head=True)
    preferences = rewards._replace(value_head=False, needs_full_logits=True, reference_logits=True)
    logits = 2 * 4096 * SMALL.vocab
    assert estimate_device_memory(SMALL, rewards).terms[DeviceTerm.LOGITS] == 6 * logits
    assert estimate_device_memory(SMALL, preferences).terms[DeviceTerm.LOGITS] == 16 * logits
    assert (
        estimate_device_memory(SMALL, preferences._replace(estimates_kl=True)).terms[DeviceTerm.LOGITS] == 20 * logits
    )


@pytest.mark.parametrize(("accumulation", "gathered"), [(1, False), (4, True)])
def test_fsdp_keeps_whole_gradients_between_micro_batches(accumulation: int, gathered: bool) -> None:
    sharding = Sharding(1, 8, FSDP_FULL_SHARD)
    work = Workload(method="full", accumulation=accumulation, length=64, sharding=sharding)
    assert (estimate_device_memory(QWEN_32B, work).terms[DeviceTerm.GRADIENTS] >= 2 * 32.7e9) is gathered


@pytest.mark.parametrize(("method", "bits", "bytes_each"), [("full", 0, 4), ("lora", 0, 2), ("lora", 4, 0.5)])
def test_fsdp_that_starts_after_loading_needs_room_for_the_whole_model(
    method: Method, bits: int, bytes_each: float
) -> None:
    work = Workload(method=method, quant_bits=bits, length=64, sharding=Sharding(1, 8, FSDP_FULL_SHARD))
    after = work._replace(sharding=work.sharding._replace(sharded_load=False))
    whole = bytes_each * parameter_count(QWEN_32B)
    assert (
        loading_phase(TrainingStep(QWEN_32B, after))[DeviceTerm.WEIGHTS]
        >= whole
        > estimate_device_memory(QWEN_32B, work).terms[DeviceTerm.WEIGHTS]
    )
    assert estimate_device_memory(QWEN_32B, after).allocated >= estimate_device_memory(QWEN_32B, work).allocated
    assert estimate_host_memory(QWEN_32B, work).expected > estimate_host_memory(QWEN_32B, after).expected + whole / 2


def test_fsdp_holds_the_inputs_of_frozen_layers_and_their_gradients() -> None:
    def checkpoints(fsdp: bool) -> float:
        sharding = Sharding(1, 2, FSDP_FULL_SHARD if fsdp else ZERO_3)
        work = Workload(precision="amp", length=8192, loss="fused", sharding=sharding)
        return estimate_device_memory(QWEN_32B, work).terms[DeviceTerm.CHECKPOINTS]

    assert checkpoints(True) - checkpoints(False) == 2 * 8192 * 5120 * (64 - 2)


@pytest.mark.parametrize("fsdp", [True, False])
@pytest.mark.parametrize(("double", "bytes_each"), [(True, (1 + 4 / 256) / 64), (False, 4 / 64)])
def test_scales_of_4_bit_weights_are_not_spread(fsdp: bool, double: bool, bytes_each: float) -> None:
    """In two processes of FSDP with transformers 4.57.6 and bitsandbytes 0.50.2, all 4,688 bytes of scales in each."""

    def on_device(devices: int) -> float:
        sharding = Sharding(
            1, devices, FSDP_FULL_SHARD if fsdp else ZERO_3, persistence_threshold=0, offload_parameters=True
        )
        return base_weights_on_device(
            TrainingStep(QWEN_32B, Workload(quant_bits=4, double_quant=double, sharding=sharding))
        )

    layers = 64 * (2 * 5120 * 5120 + 2 * 5120 * 1024 + 3 * 5120 * 27648)
    assert on_device(2) == on_device(8) == pytest.approx(bytes_each * layers, rel=0.005)  # and norms under ZeRO-3


@pytest.mark.parametrize("bits", [0, 8])
def test_weights_without_such_scales_are_spread_whole(bits: int) -> None:
    alone = TrainingStep(QWEN_32B, Workload(quant_bits=bits))
    spread = TrainingStep(QWEN_32B, Workload(quant_bits=bits, sharding=Sharding(1, 4, FSDP_FULL_SHARD)))
    assert base_weights_on_device(spread) == pytest.approx(base_weights_on_device(alone) / 4)


@pytest.mark.parametrize("devices", [2, 8])
def test_plain_data_parallel_does_not_shrink_a_model(devices: int) -> None:
    work = Workload(length=4096)
    alone = estimate_device_memory(QWEN_32B, work).allocated
    assert estimate_device_memory(QWEN_32B, work._replace(sharding=Sharding(1, devices))).allocated >= alone
