"""Host memory against runs that people reported."""

from __future__ import annotations

import pytest

from validator.physics import (
    FSDP_FULL_SHARD,
    ZERO_2,
    ZERO_3,
    ZERO_STAGES,
    Architecture,
    AttentionShape,
    FeedForwardShape,
    Sharding,
    Workload,
    estimate_device_memory,
    estimate_host_memory,
    parameter_count,
)
from validator.physics.estimate import DeviceTerm, HostTerm
from validator.physics.host_memory import offloaded_weight_bytes, pinned_bytes
from validator.physics.training_step import training_step
from validator.physics.workload import Method

QWEN_32B = Architecture(5120, 64, 152064, AttentionShape(40, 8, 128, qkv_bias=True), FeedForwardShape(27648))
QWEN_72B = Architecture(8192, 80, 152064, AttentionShape(64, 8, 128, qkv_bias=True), FeedForwardShape(29568))
GLM4_9B = Architecture(
    4096, 40, 151552, AttentionShape(32, 2, 128, qkv_bias=True), FeedForwardShape(13696, fused_gate_up=True)
)
LLAMA_33B = Architecture(6656, 60, 32000, AttentionShape(52, 52, 128), FeedForwardShape(17920))


def offloaded(devices: int, pin: bool = True, save: bool = True) -> Workload:
    sharding = Sharding(
        1, devices, ZERO_3, offload_optimizer=True, offload_parameters=True, pin_memory=pin, gather_on_save=save
    )
    return Workload(method="full", precision="engine", sharding=sharding)


# (who reported it, model, run, memory of the node in GB of 10^9 bytes): the process was killed
KILLED = [
    ("hiyouga/LLaMA-Factory#6755", QWEN_32B, offloaded(1), 744),
    ("hiyouga/LLaMA-Factory#4629", GLM4_9B, offloaded(1), 252),
    ("field report S1c", QWEN_72B, offloaded(8, pin=False), 512),
]


@pytest.mark.parametrize(("source", "arch", "work", "gigabytes"), KILLED, ids=[source for source, *_ in KILLED])
def test_killed_runs_are_not_said_to_fit(source: str, arch: Architecture, work: Workload, gigabytes: float) -> None:
    assert estimate_host_memory(arch, work).expected > gigabytes * 1e9, source


# (who reported it, model, run, GB in use; the second saw it while training, not while saving)
IN_USE = [
    ("GAIR-NLP/LIMO#10", QWEN_32B, offloaded(8), 900),
    ("deepspeedai/DeepSpeed#3448", LLAMA_33B, offloaded(8, save=False), 775),
]


@pytest.mark.parametrize(("source", "arch", "work", "gigabytes"), IN_USE, ids=[source for source, *_ in IN_USE])
def test_reported_use_is_inside_the_band(source: str, arch: Architecture, work: Workload, gigabytes: float) -> None:
    predicted = estimate_host_memory(arch, work)
    assert predicted.low <= gigabytes * 1e9 <= predicted.high, source
    assert predicted.expected == pytest.approx(gigabytes * 1e9, rel=0.10), source


@pytest.mark.parametrize(("size", "locked"), [(1, 1), (4096, 4096), (4097, 8192), (3e9, 2**32)])
def test_page_locked_memory_comes_in_powers_of_two(size: float, locked: int) -> None:
    assert pinned_bytes(size) == locked


def fsdp_weights(method: Method, version: int, offload: bool = True) -> float:
    """Bytes of weights in main memory while Qwen 32B trains on two devices under FSDP."""
    sharding = Sharding(
        1,
        2,
        FSDP_FULL_SHARD,
        offload_optimizer=offload,
        offload_parameters=offload,
        pin_memory=False,
        upcasts_frozen_weights=version == 2,
    )
    return offloaded_weight_bytes(training_step(QWEN_32B, Workload(method=method, quant_bits=4, sharding=sharding)))


def test_fsdp_1_page_locks_a_shard_of_each_layer_and_a_gradient_of_its_size() -> None:
    """A layer of 244 MB in two shards, and 3.1 GB of the rest. By the source of torch 2.13 frozen weights have
    such a gradient, too."""
    assert fsdp_weights("lora", 1) == 2 * 2 * (64 * 2**27 + 2**31)


def test_fsdp_2_makes_no_gradient_of_frozen_weights() -> None:
    assert fsdp_weights("lora", 2) < fsdp_weights("lora", 1)


@pytest.mark.parametrize("version", [1, 2])
def test_fsdp_without_offload_leaves_no_weights_in_main_memory(version: int) -> None:
    assert fsdp_weights("lora", version, offload=False) == 0


def test_pinning_never_saves_memory() -> None:
    assert (
        estimate_host_memory(QWEN_72B, offloaded(8)).expected
        > estimate_host_memory(QWEN_72B, offloaded(8, pin=False)).expected
    )


def test_a_mapped_checkpoint_counts_only_in_the_high_side() -> None:
    mapped = estimate_host_memory(QWEN_72B, Workload(sharding=Sharding(1, 8, ZERO_3)))
    materialized = estimate_host_memory(QWEN_72B, Workload(low_memory_load=False, sharding=Sharding(1, 8, ZERO_3)))
    assert mapped.expected < 145e9 < mapped.high
    assert materialized.expected > 8 * 145e9


def test_a_reference_follows_the_parameters_to_the_host() -> None:
    shared = offloaded(8)._replace(reference_copies=1)
    assert "reference" not in estimate_device_memory(QWEN_32B, shared).terms
    assert estimate_host_memory(QWEN_32B, shared).terms[HostTerm.REFERENCE] >= 2 * 32.7e9
    copied = shared._replace(sharding=Sharding(1, 8, ZERO_2))
    assert estimate_device_memory(QWEN_32B, copied).terms[DeviceTerm.REFERENCE] >= 2 * 32.7e9


SMALL = Architecture(2048, 16, 128256, AttentionShape(32, 8, 64), FeedForwardShape(8192), tied=True)


def test_paged_states_live_on_the_host() -> None:
    work = Workload(method="full", precision="pure", optimizer="paged_adamw_8bit")
    assert "optimizer" not in estimate_device_memory(SMALL, work).terms
    assert estimate_host_memory(SMALL, work).terms[HostTerm.MOMENTS] > 2 * parameter_count(SMALL)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_paging_moves_the_moments_of_a_partition_and_leaves_the_master_weights(stage: int) -> None:
    work = Workload(
        method="full", precision="engine", optimizer="paged_adamw_8bit", sharding=Sharding(1, 8, ZERO_STAGES[stage])
    )
    assert estimate_device_memory(SMALL, work).terms[DeviceTerm.OPTIMIZER] == 4 * parameter_count(SMALL) / 8
    assert estimate_host_memory(SMALL, work).terms[HostTerm.MOMENTS] == 2 * (1 + 4 / 256) * parameter_count(SMALL)


# Qwen3-30B-A3B: 48 layers, each with 128 experts of three matrices of 2,048 x 768.
MIXTURE = Architecture(
    2048, 48, 151936, AttentionShape(32, 4, 128), FeedForwardShape(6144, experts=128, expert_width=768)
)
EXPERTS = 48 * 128 * 3 * 2048 * 768 * 2.0


@pytest.mark.parametrize(
    ("zero", "merged", "bits", "each"),
    [
        (3, True, 0, EXPERTS),
        (2, True, 0, 0.0),  # reads tensor by tensor
        (3, False, 0, 0.0),  # as transformers 4
        (3, True, 4, 0.0),  # quantized models skip ZeRO-3's loading
    ],
)
def test_every_process_holds_the_experts_that_zero3_loads(zero: int, merged: bool, bits: int, each: float) -> None:
    sharding = Sharding(2, 8, ZERO_STAGES[zero])
    work = Workload(method="lora", experts_merged=merged, quant_bits=bits, sharding=sharding)
    assert estimate_host_memory(MIXTURE, work).terms.get(HostTerm.EXPERTS, 0.0) == 8 * each
