"""States and activations in main memory: bytes, laws, and published times of the update."""

from __future__ import annotations

import pytest
from hypothesis import given
from physics.test_memory_laws import runs
from support.laws import examples

from validator.physics import (
    FSDP_FULL_SHARD,
    ZERO_STAGES,
    Architecture,
    AttentionShape,
    DeviceRates,
    FeedForwardShape,
    Sharding,
    TimeTerm,
    Workload,
)
from validator.physics.optimizer_time import offload_seconds
from validator.physics.training_step import training_step

LAWS = examples(32)
DGX = DeviceRates(125e12, 15.7e12, 0.9e12, 117e9, 0, 12.5e9, 256e9, 48, 3e9)  # a DGX-2's V100 and main memory
A100 = DeviceRates(312e12, 19.5e12, 2.0e12, 234e9, 0, 25e9, 410e9, 128, 7e9)
QWEN72 = Architecture(8192, 80, 152064, AttentionShape(64, 8, 128, qkv_bias=True), FeedForwardShape(29568))
QWEN3B = Architecture(2048, 36, 151936, AttentionShape(16, 2, 128, qkv_bias=True), FeedForwardShape(11008), tied=True)
FULL = Workload(method="full", precision="engine")


def engine(stage: int, devices: int = 8, nodes: int = 1, **changed: object) -> Sharding:
    return Sharding(nodes, devices, ZERO_STAGES[stage], offload_optimizer=True, **changed)  # type: ignore[arg-type]


# Billions of parameters and seconds of CPU Adam on a DGX-2 (2101.06840, table 4), without what the engine does beside.
@pytest.mark.parametrize(("layers", "billions"), [(36, 3.09), (80, 6.4)])
def test_the_update_takes_what_was_published(layers: int, billions: float) -> None:
    waits = offload_seconds(training_step(QWEN3B._replace(layers=layers), FULL._replace(sharding=engine(2, 1))), DGX)
    assert waits[TimeTerm.CPU_OPTIMIZER] == pytest.approx(billions * 0.257 * 42 / 30, rel=0.1)


def test_one_thread_of_each_process_bounds_the_update() -> None:
    """deepspeedai/DeepSpeed#6834: ten seconds for Qwen2-72B on four nodes of A100, where a device's takes 0.2."""
    waits = offload_seconds(training_step(QWEN72, FULL._replace(sharding=engine(3, nodes=4))), A100)
    assert 6 < waits[TimeTerm.CPU_OPTIMIZER] < 10


def test_an_update_that_is_not_fused_takes_several_times_as_long() -> None:
    fsdp = Sharding(1, 8, FSDP_FULL_SHARD, offload_optimizer=True, offload_parameters=True)
    fused, foreach = (
        offload_seconds(training_step(QWEN3B, Workload(method="full", optimizer=name, sharding=fsdp)), A100)[
            TimeTerm.CPU_OPTIMIZER
        ]
        for name in ("adamw", "adamw_foreach")
    )
    assert 5 < foreach / fused < 13


def test_gradients_leave_and_weights_come_back() -> None:
    run = training_step(QWEN72, FULL._replace(sharding=engine(2)))
    assert offload_seconds(run, A100)[TimeTerm.OFFLOAD_COPIES] == pytest.approx(
        (4 + 2) * run.parameters / 8 / (0.46 * 410e9 / 8), rel=0.01
    )


def test_weights_in_main_memory_are_fetched_for_each_pass() -> None:
    once, twice = (
        offload_seconds(
            training_step(QWEN72, FULL._replace(accumulation=number, sharding=engine(3, offload_parameters=True))), A100
        )
        for number in (1, 2)
    )
    fetched = 4 * training_step(QWEN72, FULL).parameters / 8 / (0.46 * 410e9 / 8)
    assert twice[TimeTerm.OFFLOAD_COPIES] - once[TimeTerm.OFFLOAD_COPIES] == pytest.approx(2 * fetched, rel=0.01)


def test_memory_that_is_not_page_locked_is_slower() -> None:
    pinned, pageable = (
        offload_seconds(training_step(QWEN72, FULL._replace(sharding=engine(3, pin_memory=pin))), A100)[
            TimeTerm.OFFLOAD_COPIES
        ]
        for pin in (True, False)
    )
    assert 2 < pageable / pinned < 4


def test_activations_leave_and_come_back() -> None:
    work = Workload(checkpointing="offloaded", length=4096, micro_batch=2)
    waits = offload_seconds(training_step(QWEN3B, work), A100)
    assert waits[TimeTerm.OFFLOAD_COPIES] == pytest.approx(2 * 36 * 2 * 4096 * 2048 * 2 / 25e9, rel=0.01)
    assert not waits[TimeTerm.CPU_OPTIMIZER]


@LAWS
@given(runs())
def test_nothing_in_main_memory_takes_no_time(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    sharding = work.sharding._replace(offload_optimizer=False, offload_parameters=False)
    checkpointing = "off" if work.checkpointing == "off" else "layer"
    kept = work._replace(sharding=sharding, checkpointing=checkpointing)  # type: ignore[arg-type]
    assert not any(offload_seconds(training_step(arch, kept), A100).values())


@LAWS
@given(runs())
def test_a_faster_host_is_never_slower(run: tuple[Architecture, Workload]) -> None:
    before = offload_seconds(training_step(*run), A100)
    for field in ("host_link", "host_bandwidth", "cores"):
        after = offload_seconds(training_step(*run), A100._replace(**{field: 2 * getattr(A100, field)}))
        assert all(after[term] <= before[term] for term in before)


@LAWS
@given(runs())
def test_more_micro_batches_never_move_less(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    before, after = (
        offload_seconds(training_step(arch, work._replace(accumulation=number)), A100) for number in (1, 3)
    )
    assert all(after[term] >= before[term] for term in before)
