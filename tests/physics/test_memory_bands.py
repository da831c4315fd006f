"""From live tensors to what the device's own tool shows: slack, limits, and how wide the band is."""

from __future__ import annotations

from typing import Any

import pytest

from validator.physics import (
    ZERO_3,
    Architecture,
    AttentionShape,
    DeviceRuntime,
    FeedForwardShape,
    LayerKind,
    Sharding,
    Workload,
    estimate_device_memory,
    trainable_parameter_count,
)
from validator.physics.gated_delta_net import GatedDeltaNet
from validator.physics.uncertainty import memory_spread

QWEN_32B = Architecture(5120, 64, 152064, AttentionShape(40, 8, 128, qkv_bias=True), FeedForwardShape(27648))
WORK = Workload(length=4096)


def test_expandable_segments_leave_less_between_blocks() -> None:
    wasteful = estimate_device_memory(QWEN_32B, WORK, DeviceRuntime(expandable_segments=False))
    assert estimate_device_memory(QWEN_32B, WORK, DeviceRuntime(expandable_segments=True)).expected < wasteful.expected


def test_the_allocator_gives_cached_blocks_back_before_it_fails() -> None:
    free = estimate_device_memory(QWEN_32B, WORK)
    capacity = (free.allocated + free.expected) / 2 / 2**30 + 2
    limited = estimate_device_memory(QWEN_32B, WORK, DeviceRuntime(capacity_gib=capacity))
    assert free.allocated < limited.expected < capacity * 2**30 < free.expected
    assert estimate_device_memory(QWEN_32B, WORK, DeviceRuntime(capacity_gib=1)).expected > free.allocated


def test_slack_alone_never_exceeds_a_device() -> None:
    free = estimate_device_memory(QWEN_32B, WORK)
    room = 1.15 * free.allocated
    limited = estimate_device_memory(QWEN_32B, WORK, DeviceRuntime(capacity_gib=room / 2**30))
    assert free.expected > room
    assert limited.expected < room <= limited.high < free.high


def test_varied_lengths_fill_the_cache_only_without_expandable_segments() -> None:
    def expected(padded: bool, expandable: bool) -> float:
        work = WORK._replace(pads_batches=padded, attention="flash")
        return estimate_device_memory(QWEN_32B, work, DeviceRuntime(expandable_segments=expandable)).expected

    assert expected(True, False) > expected(False, False) > expected(False, True) == expected(True, True)


def test_overlapping_communication_keeps_a_pool_for_each_stream() -> None:
    def expected(overlap: bool, offload: bool) -> float:
        sharding = Sharding(1, 8, ZERO_3, overlap_comm=overlap, offload_optimizer=offload)
        work = Workload(method="full", precision="engine", length=256, sharding=sharding)
        return estimate_device_memory(QWEN_32B, work).expected

    tables = 2 * QWEN_32B.vocab * QWEN_32B.hidden
    one_billion = 10**9
    assert expected(True, False) - expected(False, False) > 2 * one_billion
    assert expected(True, True) - expected(False, True) > 2 * one_billion + 2 * 2 * tables


def test_thin_evidence_widens_the_band() -> None:
    good, thin = (
        estimate_device_memory(QWEN_32B, WORK, DeviceRuntime(evidence=evidence)) for evidence in ("good", "thin")
    )
    assert thin.low < good.low < good.high < thin.high


MIXTURE = QWEN_32B._replace(ffn=FeedForwardShape(8192, experts=8, experts_per_token=2, expert_width=4096))


@pytest.mark.parametrize(
    ("arch", "changed", "words"),
    [
        (QWEN_32B, {}, ()), (MIXTURE, {}, ("mixtures of experts",)),
        (QWEN_32B, {"method": "oft"}, ("orthogonal adapters",)),
        (QWEN_32B, {"sharding": Sharding(2, 8, ZERO_3)}, ("runs on several nodes",)),
        (QWEN_32B, {"sharding": Sharding(1, 8, ZERO_3, offload_parameters=True)}, ("offload to the host",)),
        (QWEN_32B, {"optimizer": "muon"}, ("this optimizer",)),
        (QWEN_32B, {"length": 32768}, ("samples over 16384 tokens",)),
        (QWEN_32B, {"value_head": True}, ("preference and reward stages",)),
    ],
)  # fmt: skip
def test_what_nobody_measured_is_named_and_widens_the_band(
    arch: Architecture, changed: dict[str, Any], words: tuple[str, ...]
) -> None:
    work = WORK._replace(**changed)
    assert estimate_device_memory(arch, work).gaps == words
    assert estimate_device_memory(arch, work, DeviceRuntime(evidence="thin")).gaps == ("this kind of device", *words)
    assert memory_spread(words, device_measured=True) == (0.06 if words else 0.03)
    assert memory_spread(words, device_measured=False) == 0.08


HYBRID = Architecture(
    2560,
    32,
    248320,
    AttentionShape(16, 4, 256, qk_norm=True, output_gate=True),
    FeedForwardShape(9216),
    mixer=GatedDeltaNet(16, 32, 128, 128, 4),
    kinds=(*[LayerKind(attends=False, mixes=True)] * 3, LayerKind()) * 8,
)


def test_the_band_of_linear_attention_reaches_down_to_fused_kernels() -> None:
    work = WORK._replace(checkpointing="off", length=1024)
    plain, fused = (
        estimate_device_memory(HYBRID._replace(mixer=GatedDeltaNet(16, 32, 128, 128, 4, kernels=kernels)), work)
        for kernels in (False, True)
    )
    assert plain.low == fused.low < fused.allocated < 0.7 * plain.allocated
    assert any("flash-linear-attention" in gap for gap in plain.gaps)
    assert not any("linear" in gap for gap in estimate_device_memory(QWEN_32B, work).gaps)


def test_the_last_layers_of_a_pattern_train() -> None:
    def trained(layers: int) -> int:
        return trainable_parameter_count(HYBRID, Workload(method="freeze", trainable_layers=layers))

    full, linear = trained(1), trained(2) - trained(1)
    assert full != linear
    assert trained(4) == full + 3 * linear
    assert trained(5) == trained(4) + full
