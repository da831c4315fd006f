"""What devices send each other: bytes by the way of sharding, laws, and what hides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from physics.test_memory_laws import runs
from support.laws import examples

from validator.physics import (
    FSDP_FULL_SHARD,
    FSDP_SHARD_GRAD_OP,
    ZERO_STAGES,
    Adapter,
    Architecture,
    AttentionShape,
    DeviceRates,
    FeedForwardShape,
    Sharding,
    TimeTerm,
    Workload,
    estimate_device_memory,
    estimate_host_memory,
    estimate_step_time,
)
from validator.physics.communication import communication_seconds
from validator.physics.estimate import DeviceTerm, HostTerm
from validator.physics.micro_batch import MicroBatchCosts, micro_batch_costs
from validator.physics.training_step import training_step

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/physics/*"])

LAWS = examples(32)
A100 = DeviceRates(312e12, 19.5e12, 2.0e12, 234e9, 85e9, 25e9, 410e9, 128, 7e9)
# The shapes of Qwen2.5-7B, and no computation for traffic to hide behind.
QWEN = Architecture(3584, 28, 152064, AttentionShape(28, 4, 128, qkv_bias=True), FeedForwardShape(18944))
PARAMETERS = 7_615_616_512
IDLE = MicroBatchCosts(())
SLOW = A100._replace(link=1e9)  # starting a collective counts nothing beside its bytes
LORA = Adapter(8)


def waited(sharding: Sharding, device: DeviceRates = SLOW, **changed: object) -> float:
    work = Workload(**{"method": "full", "precision": "engine" if sharding.strategy.deepspeed else "amp", **changed})  # type: ignore[arg-type]
    return sum(communication_seconds(training_step(QWEN, work._replace(sharding=sharding)), device, IDLE).values())


def engine(stage: int, **changed: object) -> Sharding:
    return Sharding(1, 8, ZERO_STAGES[stage], **changed)  # type: ignore[arg-type]


RING = 7 / 8 * PARAMETERS / 1e9  # seconds for one byte of each parameter to go round 8 devices at 1 GB/s

# name, sharding, what else, bytes of each parameter that go round
STEPS = [
    ("plain data parallel: fp32 gradients twice", Sharding(1, 8), {}, 8),
    ("the same in pure half precision", Sharding(1, 8), {"precision": "pure"}, 4),
    ("accumulation adds nothing", Sharding(1, 8), {"accumulation": 4}, 8),
    ("stage 0 of an engine: gradients twice", engine(0), {}, 4),
    ("stage 1: gradients twice and weights", engine(1), {"accumulation": 4}, 4 + 2),
    ("stage 2: the same", engine(2), {}, 4 + 2),
    ("stage 2 reduces after every micro batch", engine(2), {"accumulation": 4}, 4 * 4 + 2),
    ("stage 3: weights twice and gradients", engine(3), {}, 4 + 2),
    ("stage 3 does so in every micro batch", engine(3), {"accumulation": 4}, 4 * (4 + 2)),
    ("stage 3 gathers the frozen weights of an adapter", engine(3), {"method": "lora", "adapter": LORA}, 4),
    ("below, an adapter is all that travels", engine(2), {"method": "lora", "adapter": LORA}, 0),
    ("FSDP: half-precision weights twice and gradients", Sharding(1, 8, FSDP_FULL_SHARD), {}, 4 + 2),
    ("FSDP reduces once", Sharding(1, 8, FSDP_FULL_SHARD), {"accumulation": 4}, 4 * 4 + 2),
    ("FSDP that keeps gathered weights", Sharding(1, 8, FSDP_SHARD_GRAD_OP), {}, 2 + 2),
    (
        "FSDP gathers a base of 4 bits as it is",
        Sharding(1, 8, FSDP_FULL_SHARD),
        {"method": "lora", "quant_bits": 4, "adapter": LORA},
        1.46,
    ),
    ("a reference model is gathered beside", engine(3), {"reference_copies": 1, "reference_logits": True}, 10),
    ("ZeRO++ gathers weights in 8 bits", engine(3, weights_sent_in_8_bits=True), {}, 2 + 2),
    ("ZeRO++ reduces gradients in 4 bits", engine(3, gradients_sent_in_4_bits=True), {}, 4 + 0.5),
    (
        "hybrid sharding on one node is full sharding",
        Sharding(1, 8, FSDP_FULL_SHARD, replicated_across_nodes=True),
        {},
        4 + 2,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sharding", "changed", "expected"), [step[1:] for step in STEPS], ids=[s[0] for s in STEPS])
def test_bytes_are_those_that_the_software_moves(sharding: Sharding, changed: dict[str, Any], expected: float) -> None:
    assert waited(sharding, **changed) / RING == pytest.approx(expected, rel=0.02, abs=0.05)


def test_several_nodes_wait_for_the_network_that_devices_share() -> None:
    run = training_step(QWEN, Workload(method="full", precision="engine", sharding=engine(2)._replace(nodes=2)))
    waits = communication_seconds(run, A100._replace(network=3e9), IDLE)
    assert set(waits) == {TimeTerm.NETWORK}
    assert waits[TimeTerm.NETWORK] == pytest.approx(6 * PARAMETERS * 15 / 16 / 3e9, rel=0.01)
    assert set(communication_seconds(run, A100._replace(network=400e9), IDLE)) == {TimeTerm.COMMUNICATION}


HSDP = Sharding(2, 8, FSDP_FULL_SHARD, replicated_across_nodes=True)
NODE, ACROSS = 7 / 8 / 20e9, 1 / 2 / 1e9  # seconds of a byte round the 8 devices of a node, and round 2 nodes

# name, sharding, what else, bytes of each parameter within a node, those between nodes, all in seconds
TWO_NODES = [
    ("hybrid sharding all-reduces shards between nodes", HSDP, {}, 6 * NODE, 4 * ACROSS),
    ("and does so once in a step", HSDP, {"accumulation": 4}, (4 * 4 + 2) * NODE, 4 * ACROSS),
    (
        "hpZ gathers over all after an update, and reduces over all",
        engine(3, second_copy_devices=8)._replace(nodes=2),
        {},
        2 * NODE,
        (2 + 2) * 15 / 16 / 1e9,
    ),
    (
        "hpZ stays in the node in all later micro batches",
        engine(3, second_copy_devices=8)._replace(nodes=2),
        {"accumulation": 4},
        (2 + 3 * 4) * NODE,
        (2 + 4 * 2) * 15 / 16 / 1e9,
    ),
    (
        "frozen weights never leave the node under hpZ",
        engine(3, second_copy_devices=8)._replace(nodes=2),
        {"method": "lora", "adapter": LORA},
        4 * NODE,
        0,
    ),
    (
        "gradients in 4 bits cross each link once",
        engine(3, gradients_sent_in_4_bits=True, second_copy_devices=8)._replace(nodes=2),
        {},
        (2 + 0.5) * NODE,
        2 * 15 / 16 / 1e9 + 0.5 * ACROSS,
    ),
]


@pytest.mark.parametrize(
    ("sharding", "changed", "within", "between"), [row[1:] for row in TWO_NODES], ids=[row[0] for row in TWO_NODES]
)
def test_bytes_of_two_nodes_by_link(sharding: Sharding, changed: dict[str, Any], within: float, between: float) -> None:
    device = A100._replace(link=20e9, network=1e9)
    settings = {"method": "full", "precision": "engine" if sharding.strategy.deepspeed else "amp", **changed}
    run = training_step(QWEN, Workload(**settings)._replace(sharding=sharding))
    waits = communication_seconds(run, device, IDLE)
    assert waits[TimeTerm.COMMUNICATION] == pytest.approx(PARAMETERS * within, rel=0.05)
    assert waits[TimeTerm.NETWORK] == pytest.approx(PARAMETERS * between, rel=0.02, abs=0.1)


def test_a_second_copy_costs_its_share_of_the_weights() -> None:
    work = Workload(method="full", precision="engine", sharding=engine(3)._replace(nodes=2))
    plain, doubled = (
        estimate_device_memory(QWEN, work._replace(sharding=work.sharding._replace(second_copy_devices=devices)))
        for devices in (0, 8)
    )
    assert doubled.terms[DeviceTerm.WEIGHTS] - plain.terms[DeviceTerm.WEIGHTS] == pytest.approx(2 * PARAMETERS / 8)
    on_host = Sharding(2, 8, ZERO_STAGES[3], offload_optimizer=True, offload_parameters=True, pin_memory=False)
    hosts = [
        estimate_host_memory(QWEN, work._replace(sharding=on_host._replace(second_copy_devices=devices))).terms
        for devices in (0, 8)
    ]
    more = hosts[1][HostTerm.PARAMETERS] - hosts[0][HostTerm.PARAMETERS]
    assert more == pytest.approx(2 * PARAMETERS)


def test_nodes_that_hold_all_states_train_on_different_samples() -> None:
    work = Workload(method="full", length=1024, sharding=HSDP)
    assert estimate_step_time(QWEN, work, A100).tokens == 16 * 1024
    memory = [
        estimate_device_memory(QWEN, work._replace(sharding=each)).terms for each in (HSDP, HSDP._replace(nodes=1))
    ]
    assert memory[0] == memory[1]


def test_without_own_links_devices_share_the_main_memory() -> None:
    card = A100._replace(link=14e9, nvlink_switch=False, host_bandwidth=410e9)
    assert waited(engine(2), card) == pytest.approx(waited(engine(2), card._replace(nvlink_switch=True)))
    desk = card._replace(host_bandwidth=50e9)
    assert waited(engine(2), desk) == pytest.approx(14 / (0.365 * 50 / 8) * waited(engine(2), card), rel=0.01)


def test_overlap_hides_what_the_file_says() -> None:
    work = Workload(method="full", precision="engine", length=8192, micro_batch=4)
    for stage in (1, 2, 3):
        waits = []
        for overlap in (False, True):
            run = training_step(QWEN, work._replace(sharding=engine(stage, overlap_comm=overlap)))
            waits.append(sum(communication_seconds(run, A100, micro_batch_costs(run, A100)).values()))
        assert waits[1] < 0.97 * waits[0]


def test_small_tensors_wait_for_each_start() -> None:
    """Of an adapter under ZeRO-3 every matrix is gathered by itself."""
    work = Workload(method="lora", precision="engine", sharding=engine(3, prefetch_bucket=0))
    plain, adapted = (
        communication_seconds(training_step(QWEN, work._replace(adapter=Adapter(8, targets))), A100, IDLE)[
            TimeTerm.COMMUNICATION
        ]
        for targets in (("q",), ("q", "k", "v", "o", "gate", "up", "down"))
    )
    assert adapted > 1.15 * plain


@LAWS
@given(runs())
def test_one_device_sends_nothing(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    alone = training_step(arch, work._replace(sharding=work.sharding._replace(nodes=1, devices_per_node=1)))
    assert not communication_seconds(alone, A100, micro_batch_costs(alone, A100))


@LAWS
@given(runs(), st.sampled_from(["link", "network"]))
def test_a_faster_link_is_never_slower(run: tuple[Architecture, Workload], field: str) -> None:
    before = estimate_step_time(*run, A100).expected
    for factor in (1.1, 4):
        after = estimate_step_time(*run, A100._replace(**{field: factor * getattr(A100, field)})).expected
        assert after <= before * (1 + 1e-9)


@LAWS
@given(runs())
def test_more_computation_never_shortens_the_step(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    short, long = (estimate_step_time(arch, work._replace(length=length), A100).expected for length in (1024, 1025))
    assert short <= long * (1 + 1e-9)


@LAWS
@given(runs())
def test_stage_3_never_sends_less_than_stage_2(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    assume(work.sharding.strategy.deepspeed and work.sharding.world_size > 1)
    second, third = (
        sum(
            communication_seconds(
                training_step(arch, work._replace(sharding=work.sharding._replace(strategy=ZERO_STAGES[stage]))),
                SLOW,
                IDLE,
            ).values()
        )
        for stage in (2, 3)
    )
    assert third >= 0.999 * second


@LAWS
@given(runs())
def test_more_micro_batches_never_send_less(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    before, after = (
        sum(communication_seconds(training_step(arch, work._replace(accumulation=number)), A100, IDLE).values())
        for number in (1, 3)
    )
    assert after >= before
