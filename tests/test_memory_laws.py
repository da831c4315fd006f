"""The laws of every prediction, over the catalogue's models, all methods, optimizers, stages and ways of sharding."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from validator.memory import (
    Adapter,
    Architecture,
    Runtime,
    Sharding,
    Workload,
    device_memory,
    host_memory,
    linear_roles,
    trainable_parameters,
)
from validator.memory.moments import step
from validator.memory.optimizer import state_bytes
from validator.memory.shapes import blocks
from validator.tables import models

LAWS = settings(max_examples=60, deadline=None)
ARCHITECTURES = [models.model(name).arch for name in models.model_ids()]
OPTIMIZERS = [
    "adamw", "adamw_foreach", "adamw_32bit", "adamw_8bit", "adamw_4bit", "ademamix", "ademamix_8bit", "lion",
    "lion_8bit", "momentum", "adagrad", "rmsprop", "rmsprop_8bit", "adam_mini", "sgd", "galore", "galore_8bit",
    "galore_adafactor", "apollo", "adafactor", "muon", "badam", "paged_adamw_32bit", "paged_adamw_8bit",
]  # fmt: skip
STAGES = [
    {}, {"sequences_per_sample": 2, "value_head": True}, {"sequences_per_sample": 2, "needs_full_logits": True},
    {"sequences_per_sample": 2, "needs_full_logits": True, "reference_logits": True, "reference_copies": 1},
    {"needs_full_logits": True, "reference_logits": True, "estimates_kl": True},
    {"needs_full_logits": True, "reference_logits": True, "value_head": True, "reference_copies": 2},
]  # fmt: skip


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    kind = draw(st.sampled_from(["alone", "copies", "zero", "zero", "fsdp"]))
    nodes, devices = draw(st.sampled_from([(1, 2), (1, 8), (2, 8)]))
    if kind == "alone":
        return Sharding()
    if kind == "copies":
        return Sharding(nodes, devices)
    offload = draw(st.booleans())
    if kind == "fsdp":
        return Sharding(nodes, devices, draw(st.sampled_from([2, 3])), fsdp=True, sharded_load=draw(st.booleans()),
                        offload_optimizer=offload, offload_parameters=offload, pin_memory=False)  # fmt: skip
    stage = draw(st.sampled_from([0, 1, 2, 3]))
    return Sharding(
        nodes, devices, stage, engine=True, offload_optimizer=offload and stage >= 1,
        offload_parameters=offload and stage == 3 and draw(st.booleans()), pin_memory=draw(st.booleans()),
        overlap=draw(st.booleans()), gather_on_save=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> tuple[Architecture, Workload]:
    """A model of the catalogue and a run that LLaMA-Factory could be asked for."""
    arch, sharding = draw(st.sampled_from(ARCHITECTURES)), draw(shardings())
    method = draw(st.sampled_from(["full", "freeze", "lora", "lora", "oft"]))
    roles = linear_roles(arch)
    adapted = method == "lora"
    work = Workload(
        method=method,
        precision="engine" if sharding.engine else draw(st.sampled_from(["amp", "pure", "fp32"])),
        quant_bits=draw(st.sampled_from([0, 0, 4, 8])) if adapted else 0,
        double_quant=draw(st.booleans()),
        adapter=Adapter(
            draw(st.sampled_from([8, 64])), draw(st.sampled_from([roles, roles[:1], roles[-1:]])),
            dora=adapted and draw(st.booleans()), dropout=draw(st.booleans()),
            full_embedding=adapted and draw(st.booleans()), full_head=adapted and draw(st.booleans()),
        ),
        optimizer=draw(st.sampled_from(OPTIMIZERS)),
        optimizer_rank=128,
        micro_batch=draw(st.integers(1, 4)),
        length=draw(st.sampled_from([128, 1024, 8192])),
        accumulation=draw(st.sampled_from([1, 4])),
        checkpointing=draw(st.sampled_from(["layer", "off", "offloaded"])),
        attention=draw(st.sampled_from(["sdpa", "flash", "eager"])),
        padded=draw(st.booleans()),
        loss=draw(st.sampled_from(["upcast", "fused"])),
        fused_kernels=draw(st.booleans()),
        eval_batch=draw(st.sampled_from([0, 8])),
        loader_workers=draw(st.sampled_from([0, 4])),
        low_memory_load=draw(st.booleans()),
        sharding=sharding,
    )  # fmt: skip
    return arch, work._replace(**draw(st.sampled_from(STAGES)))


RUNTIMES = st.builds(
    Runtime, context_gib=st.just(0.5), evidence=st.sampled_from(["good", "thin"]), expandable_segments=st.booleans(),
    capacity_gib=st.sampled_from([None, 23.6, 79.2]),
)  # fmt: skip


@LAWS
@given(runs(), RUNTIMES)
def test_terms_sum_to_what_is_allocated_and_the_band_holds_what_is_expected(
    run: tuple[Architecture, Workload], runtime: Runtime
) -> None:
    device, host = device_memory(*run, runtime), host_memory(*run)
    assert all(size > 0 for size in (*device.terms.values(), *host.terms.values()))
    assert sum(device.terms.values()) == device.allocated < device.expected
    assert device.low <= device.expected <= device.high
    assert sum(host.terms.values()) == host.expected
    assert host.low <= host.expected <= host.high


@LAWS
@given(runs())
def test_more_of_anything_never_needs_less(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    device, host = device_memory(arch, work), host_memory(arch, work)
    rank = work.adapter._replace(rank=2 * work.adapter.rank, block=2 * work.adapter.block)
    for larger, more in (
        (arch, work._replace(micro_batch=work.micro_batch + 1)),
        (arch, work._replace(length=2 * work.length)),
        (arch, work._replace(accumulation=work.accumulation + 1)),
        (arch, work._replace(adapter=rank)),
        (arch._replace(layers=arch.layers + 1), work),
        (arch._replace(vocab=arch.vocab + 1000), work),
    ):
        after = device_memory(larger, more)
        assert after.allocated >= device.allocated
        assert after.expected >= device.expected
        assert after.high >= device.high
        assert host_memory(larger, more).expected >= host.expected


def states(arch: Architecture, work: Workload) -> float:
    """Model states of one device while the optimizer steps."""
    terms = step(arch, work)
    return sum(terms.get(name, 0.0) for name in ("weights", "adapter", "gradients", "optimizer", "reference"))


@LAWS
@given(runs(), st.sampled_from([2, 8]))
def test_a_higher_stage_or_more_devices_never_hold_more_model_state(
    run: tuple[Architecture, Workload], devices: int
) -> None:
    arch, work = run

    def at(stage: int, count: int) -> float:
        sharding = Sharding(1, count, stage, engine=True, persistence_threshold=0)
        return states(arch, work._replace(precision="engine", sharding=sharding))

    stages = [at(stage, devices) for stage in (0, 1, 2)]
    assert stages == sorted(stages, reverse=True)
    kept = sum(count * block.vectors for count, block in blocks(arch, work.experts_fused)) * 2.0
    assert at(3, devices) <= stages[-1] + kept
    for stage in (0, 1, 2, 3):
        assert at(stage, 2 * devices) <= at(stage, devices)


@LAWS
@given(runs(), st.sampled_from([2, 3]), st.sampled_from([1, 8]), st.booleans())
def test_offload_moves_bytes_and_loses_none(
    run: tuple[Architecture, Workload], stage: int, devices: int, pin: bool
) -> None:
    arch, work = run
    sharding = Sharding(1, devices, stage, engine=True, pin_memory=pin, persistence_threshold=0)
    here = work._replace(precision="engine", optimizer="adamw", low_memory_load=True, sharding=sharding)
    there = here._replace(sharding=sharding._replace(offload_optimizer=True, offload_parameters=stage == 3))
    moved = devices * (states(arch, here) - states(arch, there))
    host = host_memory(arch, there).terms
    names = ("moments", "master", "gradients", "half_copies", "parameters", "reference")
    assert moved > 0
    assert sum(host.get(name, 0.0) for name in names) >= 0.999 * moved


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_optimizer_keeps_more_than_three_full_moments(optimizer: str) -> None:
    for arch in ARCHITECTURES:
        work = Workload(method="full", optimizer=optimizer, optimizer_rank=128)
        assert 0 <= state_bytes(arch, work) <= 12 * trainable_parameters(arch, work)
