"""The laws of every prediction: over the models of the tables and random ones, all methods, optimizers, stages and ways
of sharding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.laws import examples

from validator.knowledge import models
from validator.physics import (
    FSDP_FULL_SHARD,
    FSDP_SHARD_GRAD_OP,
    ZERO_STAGES,
    Adapter,
    Architecture,
    AttentionShape,
    DeviceRuntime,
    FeedForwardShape,
    Sharding,
    TowerWorkload,
    Workload,
    disk_usage,
    estimate_device_memory,
    estimate_host_memory,
    linear_roles,
    parameter_count,
    trainable_parameter_count,
)
from validator.physics import host_memory as host_side
from validator.physics.estimate import DeviceTerm, HostTerm
from validator.physics.optimizer import optimizer_state_bytes
from validator.physics.peaks import PHASES, optimizer_step
from validator.physics.training_step import TrainingStep
from validator.physics.workload import Method, SdpaInputs

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/physics/*"])

LAWS = examples(32)
ARCHITECTURES = [models.find_model(name).arch for name in models.model_ids()]
OPTIMIZERS = [
    "adamw", "adamw_foreach", "adamw_32bit", "adamw_8bit", "adamw_4bit", "ademamix", "ademamix_8bit", "lion",
    "lion_8bit", "momentum", "adagrad", "rmsprop", "rmsprop_8bit", "adam_mini", "sgd", "galore", "galore_8bit",
    "galore_adafactor", "apollo", "adafactor", "muon", "badam", "paged_adamw_32bit", "paged_adamw_8bit",
]  # fmt: skip
STAGES: list[dict[str, Any]] = [
    {}, {"sequences_per_sample": 2, "value_head": True}, {"sequences_per_sample": 2, "needs_full_logits": True},
    {"sequences_per_sample": 2, "needs_full_logits": True, "reference_logits": True, "reference_copies": 1},
    {"sequences_per_sample": 2, "needs_full_logits": True, "reference_logits": True, "adds_supervised_loss": True},
    {"needs_full_logits": True, "reference_logits": True, "estimates_kl": True},
    {"needs_full_logits": True, "reference_logits": True, "value_head": True, "reference_copies": 2},
]  # fmt: skip


@st.composite
def invented(draw: st.DrawFn) -> Architecture:
    """A decoder that nobody published."""
    kv_heads = draw(st.sampled_from([2, 4, 8]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4]))
    experts = draw(st.sampled_from([0, 0, 8]))
    ffn = FeedForwardShape(
        draw(st.sampled_from([1024, 2816, 11008])), experts=experts, experts_per_token=2, expert_width=512
    )
    attn = AttentionShape(heads, kv_heads, 128, qk_norm=draw(st.booleans()), window=draw(st.sampled_from([0, 1024])))
    hidden, layers = draw(st.sampled_from([512, 2048, 4096])), draw(st.integers(4, 40))
    norms, vocab = draw(st.sampled_from([2, 4])), draw(st.sampled_from([32000, 151936]))
    return Architecture(hidden, layers, vocab, attn, ffn, draw(st.booleans()), norms, logit_softcap=norms == 4)


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
        return Sharding(nodes, devices, draw(st.sampled_from([FSDP_SHARD_GRAD_OP, FSDP_FULL_SHARD])),
                        sharded_load=draw(st.booleans()),
                        offload_optimizer=offload, offload_parameters=offload, pin_memory=False)  # fmt: skip
    stage = draw(st.sampled_from([0, 1, 2, 3]))
    return Sharding(
        nodes, devices, ZERO_STAGES[stage], offload_optimizer=offload and stage >= 1,
        offload_parameters=offload and stage == 3 and draw(st.booleans()), pin_memory=draw(st.booleans()),
        overlap_comm=draw(st.booleans()), gather_on_save=draw(st.booleans()),
    )  # fmt: skip


def passed_by(arch: Architecture) -> tuple[TowerWorkload, ...]:
    """What is asked of towers that do not train."""
    return tuple(TowerWorkload() for _ in arch.towers)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Architecture, Workload]:
    """A model and a run that LLaMA-Factory could be asked for."""
    arch, sharding = draw(st.one_of(st.sampled_from(ARCHITECTURES), invented())), draw(shardings())
    method: Method = draw(st.sampled_from(["full", "freeze", "lora", "lora", "oft"]))
    roles = linear_roles(arch)
    adapted = method == "lora"
    work = Workload(
        method=method,
        precision="engine" if sharding.strategy.deepspeed else draw(st.sampled_from(["amp", "pure", "fp32"])),
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
        sdpa_inputs=draw(st.builds(SdpaInputs, st.booleans(), st.booleans(), st.booleans())),
        pads_batches=draw(st.booleans()),
        loss=draw(st.sampled_from(["upcast", "shifted", "fused"])),
        logits_upcast=draw(st.booleans()),
        fused_kernels=draw(st.booleans()),
        eval_batch=draw(st.sampled_from([0, 8])),
        loader_workers=draw(st.sampled_from([0, 4])),
        dataset_tokens=draw(st.sampled_from([0, 10**8])),
        low_memory_load=draw(st.booleans()),
        towers=passed_by(arch),
        sharding=sharding,
    )  # fmt: skip
    return arch, work._replace(**draw(st.sampled_from(STAGES)))


RUNTIMES = st.builds(
    DeviceRuntime, context_gib=st.floats(0, 2), evidence=st.sampled_from(["good", "thin"]),
    expandable_segments=st.booleans(), capacity_gib=st.sampled_from([None, 8.0, 23.6, 79.2]),
)  # fmt: skip


@LAWS
@given(runs(), RUNTIMES)
def test_terms_sum_to_what_is_allocated_and_the_band_holds_what_is_expected(
    run: tuple[Architecture, Workload], runtime: DeviceRuntime
) -> None:
    device, host = estimate_device_memory(*run, runtime), estimate_host_memory(*run)
    assert all(size > 0 for size in (*device.terms.values(), *host.terms.values()))
    assert sum(device.terms.values()) == device.allocated < device.expected
    assert device.low <= device.expected <= device.high
    assert sum(host.terms.values()) == host.expected
    assert host.low <= host.expected <= host.high


@LAWS
@given(runs())
def test_more_work_never_needs_less(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    adapter = work.adapter._replace(rank=2 * work.adapter.rank, block_size=2 * work.adapter.block_size)
    for more in (
        work._replace(micro_batch=work.micro_batch + 1),
        work._replace(length=2 * work.length),
        work._replace(accumulation=work.accumulation + 1),
        work._replace(adapter=adapter),
    ):
        assert_needs_no_less(run, (arch, more))


def deeper(arch: Architecture) -> Architecture:
    """With one layer more, of the last kind."""
    if not arch.layer_groups:
        return arch._replace(layers=arch.layers + 1, kinds=(*arch.kinds, *arch.kinds[-1:]))
    *before, (number, last) = arch.layer_groups
    return arch._replace(layers=arch.layers + 1, layer_groups=(*before, (number + 1, last)))


@LAWS
@given(runs())
def test_a_larger_model_never_needs_less(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    several = bool(arch.kinds or arch.layer_groups)  # then other layers are the last ones, which alone train by freeze
    deeper_too = [] if work.method == "freeze" and several else [deeper(arch)]
    for larger in (*deeper_too, arch._replace(vocab=arch.vocab + 1000)):
        assert parameter_count(larger) > parameter_count(arch)
        assert trainable_parameter_count(larger, work) >= trainable_parameter_count(arch, work)
        assert_needs_no_less(run, (larger, work))


def assert_needs_no_less(run: tuple[Architecture, Workload], larger: tuple[Architecture, Workload]) -> None:
    """To a thousandth: slack is a share of what comes and goes, of which there is less where more stays; and FSDP's
    gathered layers count at the mean size of a quantized layer's elements."""
    before, after = estimate_device_memory(*run), estimate_device_memory(*larger)
    assert after.allocated >= 0.999 * before.allocated
    assert after.expected >= 0.999 * before.expected
    assert after.high >= 0.999 * before.high
    assert estimate_host_memory(*larger).expected >= estimate_host_memory(*run).expected


def states(arch: Architecture, work: Workload) -> float:
    """Model states of one device while the optimizer steps."""
    kept = (DeviceTerm.WEIGHTS, DeviceTerm.ADAPTER, DeviceTerm.GRADIENTS, DeviceTerm.OPTIMIZER, DeviceTerm.REFERENCE)
    return sum(size for term, size in optimizer_step(TrainingStep(arch, work)).items() if term in kept)


@LAWS
@given(runs(), st.sampled_from([2, 8]))
def test_a_higher_stage_or_more_devices_never_hold_more_model_state(
    run: tuple[Architecture, Workload], devices: int
) -> None:
    arch, work = run

    def at(stage: int, count: int) -> float:
        sharding = Sharding(1, count, ZERO_STAGES[stage], persistence_threshold=0)
        return states(arch, work._replace(precision="engine", sharding=sharding))

    stages = [at(stage, devices) for stage in (0, 1, 2)]
    assert stages == sorted(stages, reverse=True)
    kept = sum(count * block.vectors for count, block in TrainingStep(arch, work).layers) * 2.0
    assert at(3, devices) <= stages[-1] + kept
    for stage in (0, 1, 2, 3):
        assert at(stage, 2 * devices) <= at(stage, devices)


@LAWS
@given(runs(), st.sampled_from([2, 3]), st.sampled_from([1, 8]), st.booleans())
def test_offload_moves_bytes_and_loses_none(
    run: tuple[Architecture, Workload], stage: int, devices: int, pin: bool
) -> None:
    arch, work = run
    sharding = Sharding(1, devices, ZERO_STAGES[stage], pin_memory=pin, persistence_threshold=0)
    here = work._replace(precision="engine", optimizer="adamw", low_memory_load=True, sharding=sharding)
    there = here._replace(sharding=sharding._replace(offload_optimizer=True, offload_parameters=stage == 3))
    moved = devices * (states(arch, here) - states(arch, there))
    arrived = {
        HostTerm.MOMENTS,
        HostTerm.MASTER,
        HostTerm.GRADIENTS,
        HostTerm.HALF_PRECISION_COPIES,
        HostTerm.PARAMETERS,
        HostTerm.REFERENCE,
    }
    assert moved > 0
    assert (
        sum(size for term, size in estimate_host_memory(arch, there).terms.items() if term in arrived) >= 0.999 * moved
    )


@LAWS
@given(runs(), st.integers(0, 5))
def test_every_kept_checkpoint_takes_the_same_room(run: tuple[Architecture, Workload], kept: int) -> None:
    sizes = [
        sum(disk_usage(*run, number, number, save_optimizer=True).values()) for number in (kept, kept + 1, kept + 2)
    ]
    assert sizes[1] - sizes[0] == pytest.approx(sizes[2] - sizes[1])
    assert sizes[1] > sizes[0]
    assert sum(disk_usage(*run, kept, kept, save_optimizer=False).values()) <= sizes[0]


@LAWS
@given(st.one_of(st.sampled_from(ARCHITECTURES), invented()), st.sampled_from([8, 16, 128]))
def test_adapters_train_rank_times_the_widths(arch: Architecture, rank: int) -> None:
    def trained(rank: int) -> int:
        return trainable_parameter_count(
            arch, Workload(adapter=Adapter(rank, linear_roles(arch)), towers=passed_by(arch))
        )

    assert trained(rank) == rank * trained(1) > 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_optimizer_keeps_more_than_three_full_moments(optimizer: str) -> None:
    for arch in ARCHITECTURES:
        work = Workload(method="full", optimizer=optimizer, optimizer_rank=128, towers=passed_by(arch))
        run = TrainingStep(arch, work)
        assert 0 <= optimizer_state_bytes(run) <= 12 * run.trained_elements


def moments(arch: Architecture, work: Workload) -> Iterator[tuple[str, Mapping[Any, float]]]:
    """Every moment of device and host, and the disk."""
    run = TrainingStep(arch, work)
    yield from ((name, dict(terms_of(run))) for name, terms_of in PHASES.items())
    yield from ((f"host, {name}", dict(terms)) for name, terms in host_side.host_phases(run).items())
    yield "disk", dict(disk_usage(arch, work, 2, 3, save_optimizer=True))


def assert_only_these_grow(
    growth: str, before: tuple[Architecture, Workload], after: tuple[Architecture, Workload]
) -> None:
    for (moment, smaller), (_, larger) in zip(moments(*before), moments(*after), strict=True):
        for term in larger:
            if term.grows_with != growth:
                assert larger[term] == smaller[term], f"{moment}: {term} changes with the {growth}"
            elif smaller[term]:
                assert larger[term] > smaller[term], f"{moment}: {term} does not grow with the {growth}"


@LAWS
@given(runs())
def test_the_terms_of_a_batch_grow_with_it_and_no_others(run: tuple[Architecture, Workload]) -> None:
    """At batches so large that they decide which point of a layer's backward pass needs most."""
    arch, work = run
    large = work._replace(micro_batch=1 << 16, eval_batch=1 << 16)
    larger = work._replace(micro_batch=1 << 17, eval_batch=1 << 17)
    assert_only_these_grow("batch", (arch, large), (arch, larger))


@LAWS
@given(runs())
def test_the_terms_of_samples_and_processes_grow_with_them_and_no_others(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    assert_only_these_grow("samples", run, (arch, work._replace(dataset_tokens=2 * work.dataset_tokens)))
    assert_only_these_grow("processes", run, (arch, work._replace(loader_workers=work.loader_workers + 1)))


@LAWS
@given(runs())
def test_a_higher_rank_leaves_the_terms_of_the_model(run: tuple[Architecture, Workload]) -> None:
    """Outside the layers' backward pass, whose worst point may be another one at a higher rank."""
    arch, work = run
    work = work._replace(sharding=work.sharding._replace(persistence_threshold=0))
    higher = work._replace(adapter=work.adapter._replace(rank=2 * work.adapter.rank))
    for (moment, before), (_, after) in zip(moments(arch, work), moments(arch, higher), strict=True):
        if "layer backward" not in moment:
            model = [term for term in before if term.grows_with == "model"]
            assert [before[term] for term in model] == [after[term] for term in model]
