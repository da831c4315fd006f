"""Host memory, bands and devices' limits against runs that people reported."""

from __future__ import annotations

import pytest

from validator.memory import (
    Architecture,
    Attn,
    Ffn,
    Runtime,
    Sharding,
    Workload,
    device_memory,
    host_memory,
    parameters,
)
from validator.memory.evidence import spread
from validator.memory.host import pinned
from validator.memory.moments import loading
from validator.memory.workload import Method

QWEN_32B = Architecture(5120, 64, 152064, Attn(40, 8, 128, qkv_bias=True), Ffn(27648))
QWEN_72B = Architecture(8192, 80, 152064, Attn(64, 8, 128, qkv_bias=True), Ffn(29568))
GLM4_9B = Architecture(4096, 40, 151552, Attn(32, 2, 128, qkv_bias=True), Ffn(13696, fused_gate_up=True))
LLAMA_33B = Architecture(6656, 60, 32000, Attn(52, 52, 128), Ffn(17920))


def offloaded(devices: int, pin: bool = True, save: bool = True) -> Workload:
    sharding = Sharding(
        1, devices, 3, engine=True, offload_optimizer=True, offload_parameters=True, pin_memory=pin, gather_on_save=save
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
    assert host_memory(arch, work).expected > gigabytes * 1e9, source


# (who reported it, model, run, GB in use; the second saw it while training, not while saving)
IN_USE = [
    ("GAIR-NLP/LIMO#10", QWEN_32B, offloaded(8), 900),
    ("deepspeedai/DeepSpeed#3448", LLAMA_33B, offloaded(8, save=False), 775),
]


@pytest.mark.parametrize(("source", "arch", "work", "gigabytes"), IN_USE, ids=[source for source, *_ in IN_USE])
def test_reported_use_is_inside_the_band(source: str, arch: Architecture, work: Workload, gigabytes: float) -> None:
    found = host_memory(arch, work)
    assert found.low <= gigabytes * 1e9 <= found.high, source
    assert found.expected == pytest.approx(gigabytes * 1e9, rel=0.10), source


@pytest.mark.parametrize(("size", "locked"), [(1, 1), (4096, 4096), (4097, 8192), (3e9, 2**32)])
def test_page_locked_memory_comes_in_powers_of_two(size: float, locked: int) -> None:
    assert pinned(size) == locked


def test_pinning_never_saves_memory() -> None:
    assert host_memory(QWEN_72B, offloaded(8)).expected > host_memory(QWEN_72B, offloaded(8, pin=False)).expected


def test_a_mapped_checkpoint_counts_only_in_the_high_side() -> None:
    mapped = host_memory(QWEN_72B, Workload(sharding=Sharding(1, 8, 3, engine=True)))
    materialized = host_memory(QWEN_72B, Workload(low_memory_load=False, sharding=Sharding(1, 8, 3, engine=True)))
    assert mapped.expected < 145e9 < mapped.high
    assert materialized.expected > 8 * 145e9


WORK = Workload(length=4096)


def test_expandable_segments_leave_less_between_blocks() -> None:
    wasteful = device_memory(QWEN_32B, WORK, Runtime(expandable_segments=False))
    assert device_memory(QWEN_32B, WORK, Runtime(expandable_segments=True)).expected < wasteful.expected


def test_the_allocator_gives_cached_blocks_back_before_it_fails() -> None:
    free = device_memory(QWEN_32B, WORK)
    capacity = (free.allocated + free.expected) / 2 / 2**30 + 2
    limited = device_memory(QWEN_32B, WORK, Runtime(capacity_gib=capacity))
    assert free.allocated < limited.expected < capacity * 2**30 < free.expected
    assert device_memory(QWEN_32B, WORK, Runtime(capacity_gib=1)).expected > free.allocated


def test_slack_alone_never_exceeds_a_device() -> None:
    free = device_memory(QWEN_32B, WORK)
    room = 1.15 * free.allocated
    limited = device_memory(QWEN_32B, WORK, Runtime(capacity_gib=room / 2**30))
    assert free.expected > room
    assert limited.expected < room <= limited.high < free.high


def test_varied_lengths_fill_the_cache_only_without_expandable_segments() -> None:
    def expected(padded: bool, expandable: bool) -> float:
        work = WORK._replace(padded=padded, attention="flash")
        return device_memory(QWEN_32B, work, Runtime(expandable_segments=expandable)).expected

    assert expected(True, False) > expected(False, False) > expected(False, True) == expected(True, True)


def test_overlapping_communication_keeps_a_pool_for_each_stream() -> None:
    def expected(overlap: bool, offload: bool) -> float:
        sharding = Sharding(1, 8, 3, engine=True, overlap=overlap, offload_optimizer=offload)
        work = Workload(method="full", precision="engine", length=256, sharding=sharding)
        return device_memory(QWEN_32B, work).expected

    tables = 2 * QWEN_32B.vocab * QWEN_32B.hidden
    one_billion = 10**9
    assert expected(True, False) - expected(False, False) > 2 * one_billion
    assert expected(True, True) - expected(False, True) > 2 * one_billion + 2 * 2 * tables


def test_a_reference_follows_the_parameters_to_the_host() -> None:
    shared = offloaded(8)._replace(reference_copies=1)
    assert "reference" not in device_memory(QWEN_32B, shared).terms
    assert host_memory(QWEN_32B, shared).terms["reference"] >= 2 * 32.7e9
    copied = shared._replace(sharding=Sharding(1, 8, 2, engine=True))
    assert device_memory(QWEN_32B, copied).terms["reference"] >= 2 * 32.7e9


@pytest.mark.parametrize(("accumulation", "gathered"), [(1, False), (4, True)])
def test_fsdp_keeps_whole_gradients_between_micro_batches(accumulation: int, gathered: bool) -> None:
    sharding = Sharding(1, 8, 3, fsdp=True)
    work = Workload(method="full", accumulation=accumulation, length=64, sharding=sharding)
    assert (device_memory(QWEN_32B, work).terms["gradients"] >= 2 * 32.7e9) is gathered


@pytest.mark.parametrize(("method", "bits", "bytes_each"), [("full", 0, 4), ("lora", 0, 2), ("lora", 4, 0.5)])
def test_fsdp_that_starts_after_loading_needs_room_for_the_whole_model(
    method: Method, bits: int, bytes_each: float
) -> None:
    work = Workload(method=method, quant_bits=bits, length=64, sharding=Sharding(1, 8, 3, fsdp=True))
    after = work._replace(sharding=work.sharding._replace(sharded_load=False))
    whole = bytes_each * parameters(QWEN_72B)
    assert loading(QWEN_72B, after)["weights"] >= whole > device_memory(QWEN_72B, work).terms["weights"]
    assert device_memory(QWEN_72B, after).allocated >= device_memory(QWEN_72B, work).allocated
    assert host_memory(QWEN_72B, work).expected > host_memory(QWEN_72B, after).expected + whole / 2


def test_fsdp_holds_the_inputs_of_frozen_layers_and_their_gradients() -> None:
    def checkpoints(fsdp: bool) -> float:
        sharding = Sharding(1, 2, 3, fsdp=fsdp, engine=not fsdp)
        work = Workload(precision="amp", length=8192, loss="fused", sharding=sharding)
        return device_memory(QWEN_32B, work).terms["checkpoints"]

    assert checkpoints(True) - checkpoints(False) == 2 * 8192 * 5120 * (64 - 2)


def test_thin_evidence_widens_the_band() -> None:
    good, thin = (device_memory(QWEN_32B, WORK, Runtime(evidence=evidence)) for evidence in ("good", "thin"))
    assert thin.low < good.low < good.high < thin.high


MIXTURE = QWEN_32B._replace(ffn=Ffn(8192, experts=8, experts_per_token=2, expert_width=4096))


@pytest.mark.parametrize(
    ("arch", "changed", "words"),
    [
        (QWEN_32B, {}, ()), (MIXTURE, {}, ("mixtures of experts",)),
        (QWEN_32B, {"method": "oft"}, ("orthogonal adapters",)),
        (QWEN_32B, {"sharding": Sharding(2, 8, 3, engine=True)}, ("runs on several nodes",)),
        (QWEN_32B, {"sharding": Sharding(1, 8, 3, engine=True, offload_parameters=True)}, ("offload to the host",)),
        (QWEN_32B, {"optimizer": "muon"}, ("this optimizer",)),
        (QWEN_32B, {"length": 32768}, ("samples over 16384 tokens",)),
        (QWEN_32B, {"value_head": True}, ("preference and reward stages",)),
    ],
)  # fmt: skip
def test_what_nobody_measured_is_named_and_widens_the_band(
    arch: Architecture, changed: dict[str, object], words: tuple[str, ...]
) -> None:
    work = WORK._replace(**changed)
    found = device_memory(arch, work)
    assert found.gaps == words
    assert device_memory(arch, work, Runtime(evidence="thin")).gaps == ("this kind of device", *words)
    assert spread(words, device_measured=True) == (0.06 if words else 0.03)
    assert spread(words, device_measured=False) == 0.08


@pytest.mark.parametrize("devices", [2, 8])
def test_plain_data_parallel_does_not_shrink_a_model(devices: int) -> None:
    alone = device_memory(QWEN_32B, WORK).allocated
    assert device_memory(QWEN_32B, WORK._replace(sharding=Sharding(1, devices))).allocated >= alone
