"""The laws of every predicted step: over the models of the tables and random ones, all methods and ways of sharding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from physics.test_memory_laws import runs
from support.laws import examples

from validator.physics import (
    DDP,
    ZERO_2,
    ZERO_3,
    Architecture,
    DeviceRates,
    Sharding,
    ShardingStrategy,
    TimeTerm,
    Workload,
    estimate_step_time,
)

pytestmark = pytest.mark.sample(one_in=3, whole_for=["validator/physics/*"])

_RATES = ("half_flops", "fp32_flops", "bandwidth", "link", "network", "host_link", "host_bandwidth", "cores")
LAWS = examples(32)
A100 = DeviceRates(312e12, 19.5e12, 2.0e12, 300e9, 25e9, 25e9, 200e9, 96, 1e9)


@LAWS
@given(runs())
def test_terms_sum_to_the_step_inside_its_band(run: tuple[Architecture, Workload]) -> None:
    step = estimate_step_time(*run, A100)
    assert sum(step.terms.values()) == pytest.approx(step.expected)
    assert 0 < step.low <= step.expected <= step.high
    assert all(seconds > 0 for seconds in step.terms.values())
    assert step.bottleneck in step.terms


@LAWS
@given(runs())
def test_more_tokens_never_take_less_time(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    before = estimate_step_time(arch, work, A100).expected
    for more in (
        work._replace(length=2 * work.length),
        work._replace(micro_batch=work.micro_batch + 1),
        work._replace(accumulation=work.accumulation + 1),
    ):
        assert estimate_step_time(arch, more, A100).expected >= before * (1 - 1e-9)


@LAWS
@given(runs())
def test_a_larger_model_never_takes_less_time(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    before = estimate_step_time(arch, work, A100).expected
    if not arch.kinds and not arch.counted_layers:
        assert estimate_step_time(arch._replace(layers=arch.layers + 1), work, A100).expected >= before * (1 - 1e-9)
    assert estimate_step_time(arch._replace(vocab=arch.vocab + 1024), work, A100).expected >= before * (1 - 1e-9)


@LAWS
@given(runs())
def test_wider_layers_and_adapters_never_take_less_time(run: tuple[Architecture, Workload]) -> None:
    arch, work = run
    before = estimate_step_time(arch, work, A100).expected
    wider = arch.ffn._replace(width=2 * arch.ffn.width, expert_width=2 * arch.ffn.expert_width)
    assert estimate_step_time(arch._replace(ffn=wider), work, A100).expected >= before * (1 - 1e-9)
    adapter = work.adapter._replace(rank=2 * work.adapter.rank)
    assert estimate_step_time(arch, work._replace(adapter=adapter), A100).expected >= before * (1 - 1e-9)


@LAWS
@given(runs(), st.sampled_from([DDP, ZERO_2, ZERO_3]))
def test_devices_that_share_a_batch_save_no_device_hours(
    run: tuple[Architecture, Workload], strategy: ShardingStrategy
) -> None:
    arch, work = run[0], run[1]._replace(accumulation=8, precision="engine" if strategy.deepspeed else run[1].precision)
    alone = estimate_step_time(arch, work._replace(sharding=Sharding(strategy=strategy)), A100).expected
    shared = work._replace(accumulation=1, sharding=Sharding(1, 8, strategy))
    assert 8 * estimate_step_time(arch, shared, A100).expected >= alone * (1 - 1e-9)


@LAWS
@given(runs())
def test_a_faster_device_is_never_slower(run: tuple[Architecture, Workload]) -> None:
    before = estimate_step_time(*run, A100).expected
    for field in (*_RATES, "matmul_efficiency", "attention_efficiency"):
        faster = A100._replace(**{field: 2 * getattr(A100, field)})
        assert estimate_step_time(*run, faster).expected <= before * (1 + 1e-9)


@LAWS
@given(runs())
def test_the_correction_of_a_machine_scales_the_step(run: tuple[Architecture, Workload]) -> None:
    before, after = (estimate_step_time(*run, A100._replace(correction=factor)).expected for factor in (1.0, 1.5))
    assert after == pytest.approx(1.5 * before)


@LAWS
@given(runs())
def test_tokens_are_those_of_all_devices(run: tuple[Architecture, Workload]) -> None:
    _, work = run
    sequences = work.micro_batch * work.sequences_per_sample * work.accumulation * work.sharding.world_size
    assert estimate_step_time(*run, A100).tokens == sequences * work.length


@pytest.mark.parametrize("term", TimeTerm)
def test_every_term_has_words(term: TimeTerm) -> None:
    assert len(term.meaning.split()) > 2
    assert term.meaning[0].islower()
    assert not term.meaning.endswith(".")
