"""What every prediction must obey, over random models and runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validator.memory import (
    Adapter,
    Architecture,
    Attn,
    Ffn,
    Runtime,
    Sharding,
    Workload,
    device_memory,
    disk,
    host_memory,
    linear_roles,
    parameters,
    trainable_parameters,
)
from validator.memory.moments import step

settings.register_profile("memory", max_examples=60, deadline=None)
settings.load_profile("memory")

ALL = ("q", "k", "v", "o", "gate", "up", "down")


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    kv_heads = draw(st.sampled_from([2, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4]))
    experts = draw(st.sampled_from([0, 0, 8]))
    ffn = Ffn(draw(st.sampled_from([1024, 2816, 11008])), experts=experts, experts_per_token=2, expert_width=512)
    attn = Attn(heads, kv_heads, 128, head_norms=draw(st.booleans()), window=draw(st.sampled_from([0, 1024])))
    hidden, layers = draw(st.sampled_from([512, 2048, 4096])), draw(st.integers(4, 40))
    norms = draw(st.sampled_from([2, 4]))
    vocab = draw(st.sampled_from([32000, 151936]))
    return Architecture(hidden, layers, vocab, attn, ffn, draw(st.booleans()), norms, logit_softcap=norms == 4)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    method = draw(st.sampled_from(["full", "freeze", "lora", "lora"]))
    devices = draw(st.sampled_from([1, 2, 8]))
    stage = draw(st.sampled_from([0, 1, 2, 3]))
    engine = stage > 0
    offload = stage > 1 and draw(st.booleans())
    return Workload(
        method=method,
        precision="engine" if engine else draw(st.sampled_from(["amp", "pure"])),
        quant_bits=draw(st.sampled_from([0, 4])) if method == "lora" else 0,
        adapter=Adapter(draw(st.sampled_from([8, 64])), ALL),
        optimizer=draw(st.sampled_from(["adamw", "adamw_foreach", "adafactor", "adamw_8bit", "sgd", "muon"])),
        micro_batch=draw(st.integers(1, 8)),
        length=draw(st.sampled_from([128, 1024, 4096])),
        accumulation=draw(st.sampled_from([1, 4])),
        checkpointing=draw(st.sampled_from(["layer", "off", "offloaded"])),
        attention=draw(st.sampled_from(["sdpa", "flash", "eager"])),
        padded=draw(st.booleans()),
        loss=draw(st.sampled_from(["upcast", "shifted", "fused"])),
        value_head=draw(st.booleans()),
        reference_copies=draw(st.sampled_from([0, 1])),
        sharding=Sharding(1, devices, stage, engine=engine, offload_optimizer=offload,
                          offload_parameters=offload and stage == 3),
    )  # fmt: skip


def allocated(arch: Architecture, work: Workload) -> float:
    return device_memory(arch, work).allocated


@given(architectures(), workloads())
def test_terms_sum_to_what_is_allocated_and_the_band_holds_it(arch: Architecture, work: Workload) -> None:
    found = device_memory(arch, work)
    assert sum(found.terms.values()) == found.allocated > 0
    assert all(value >= 0 for value in found.terms.values())
    assert found.low <= found.expected <= found.high
    assert found.allocated < found.expected


RUNTIMES = st.builds(
    Runtime,
    context_gib=st.floats(0, 2),
    evidence=st.sampled_from(["good", "thin"]),
    expandable_segments=st.booleans(),
    capacity_gib=st.sampled_from([None, 8.0, 23.6, 79.2]),
)


@given(architectures(), workloads(), RUNTIMES)
def test_bands_are_ordered_on_every_device(arch: Architecture, work: Workload, runtime: Runtime) -> None:
    found = device_memory(arch, work, runtime)
    assert found.low <= found.expected <= found.high
    assert found.allocated < found.expected


@given(architectures(), workloads())
def test_more_work_never_needs_less(arch: Architecture, work: Workload) -> None:
    before = allocated(arch, work)
    assert allocated(arch, work._replace(micro_batch=work.micro_batch + 1)) >= before
    assert allocated(arch, work._replace(length=2 * work.length)) >= before
    assert allocated(arch, work._replace(adapter=work.adapter._replace(rank=2 * work.adapter.rank))) >= before
    assert allocated(arch, work._replace(accumulation=work.accumulation + 1)) >= before


@given(architectures(), workloads())
def test_a_larger_model_never_needs_less(arch: Architecture, work: Workload) -> None:
    before, host = allocated(arch, work), host_memory(arch, work).expected
    for larger in (arch._replace(layers=arch.layers + 1), arch._replace(vocab=arch.vocab + 1000)):
        assert allocated(larger, work) >= before
        assert host_memory(larger, work).expected >= host
        assert parameters(larger) > parameters(arch)
        assert trainable_parameters(larger, work) >= trainable_parameters(arch, work)


STATES = ("weights", "adapter", "gradients", "optimizer")


def model_states(arch: Architecture, work: Workload) -> float:
    """States during the optimizer's step."""
    terms = step(arch, work)
    return sum(terms.get(name, 0.0) for name in STATES)


@given(architectures(), workloads(), st.sampled_from([2, 8]))
def test_a_higher_stage_or_more_devices_never_hold_more_model_state(
    arch: Architecture, work: Workload, devices: int
) -> None:
    def at(stage: int, count: int) -> float:
        sharding = Sharding(1, count, stage, engine=True, persistence_threshold=0)
        return model_states(arch, work._replace(precision="engine", sharding=sharding))

    stages = [at(stage, devices) for stage in (0, 1, 2)]
    assert stages == sorted(stages, reverse=True)
    for stage in (0, 1, 2, 3):
        assert at(stage, 2 * devices) <= at(stage, devices)


@given(architectures(), st.sampled_from([1, 2, 8]), st.sampled_from([2, 3]), st.booleans())
def test_offload_moves_bytes_and_loses_none(arch: Architecture, devices: int, stage: int, pin: bool) -> None:
    here = Workload(
        method="full", precision="engine", sharding=Sharding(1, devices, stage, engine=True, pin_memory=pin)
    )
    there = here._replace(sharding=here.sharding._replace(offload_optimizer=True, offload_parameters=stage == 3))
    moved = devices * (model_states(arch, here) - model_states(arch, there))
    host = host_memory(arch, there).terms
    arrived = sum(host.get(name, 0.0) for name in ("moments", "master", "gradients", "half_copies", "parameters"))
    assert moved > 0
    assert arrived >= moved


@given(architectures(), st.sampled_from([8, 16, 128]))
def test_adapters_train_rank_times_the_widths(arch: Architecture, rank: int) -> None:
    work = Workload(adapter=Adapter(rank, linear_roles(arch)))
    assert trainable_parameters(arch, work) % rank == 0
    assert trainable_parameters(arch, work) < parameters(arch) or rank * 2 > min(arch.hidden, 512) / 8


@given(architectures(), workloads(), st.integers(0, 5))
def test_every_kept_checkpoint_takes_the_same_room(arch: Architecture, work: Workload, kept: int) -> None:
    sizes = [sum(disk(arch, work, number, save_optimizer=True).values()) for number in (kept, kept + 1, kept + 2)]
    assert sizes[1] - sizes[0] == pytest.approx(sizes[2] - sizes[1])
    assert sizes[1] > sizes[0]
    lighter = sum(disk(arch, work, kept, save_optimizer=False).values())
    assert lighter <= sizes[0]


SMALL = Architecture(2048, 16, 128256, Attn(32, 8, 64), Ffn(8192), tied=True)


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor", "galore", "adamw_8bit", "muon", "adamw"])
def test_leaner_optimizers_come_before_adamw(optimizer: str) -> None:
    work = Workload(method="full", precision="pure", optimizer=optimizer, optimizer_rank=64, length=64)
    adamw = device_memory(SMALL, work._replace(optimizer="adamw")).terms.get("optimizer", 0.0)
    assert device_memory(SMALL, work).terms.get("optimizer", 0.0) <= adamw


def test_a_value_head_needs_logits_but_no_gradient_of_them() -> None:
    rewards = Workload(length=4096, sequences_per_sample=2, value_head=True)
    preferences = rewards._replace(value_head=False, needs_full_logits=True, reference_logits=True)
    logits = 2 * 4096 * SMALL.vocab
    assert device_memory(SMALL, rewards).terms["logits"] == 6 * logits
    assert device_memory(SMALL, preferences).terms["logits"] == 16 * logits
    assert device_memory(SMALL, preferences._replace(estimates_kl=True)).terms["logits"] == 20 * logits


def test_paged_states_live_on_the_host() -> None:
    work = Workload(method="full", precision="pure", optimizer="paged_adamw_8bit")
    assert "optimizer" not in device_memory(SMALL, work).terms
    assert host_memory(SMALL, work).terms["moments"] > 2 * parameters(SMALL)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_paging_moves_the_moments_of_a_partition_and_leaves_the_master_weights(stage: int) -> None:
    work = Workload(
        method="full", precision="engine", optimizer="paged_adamw_8bit", sharding=Sharding(1, 8, stage, engine=True)
    )
    assert step(SMALL, work)["optimizer"] == 4 * parameters(SMALL) / 8
    assert host_memory(SMALL, work).terms["moments"] == 2 * (1 + 4 / 256) * parameters(SMALL)
