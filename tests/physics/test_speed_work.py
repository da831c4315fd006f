"""What takes the seconds of a step: each term on runs where it is known what it must do."""

from __future__ import annotations

import pytest

from validator.physics import (
    FSDP_FULL_SHARD,
    ZERO_2,
    ZERO_3,
    ZERO_STAGES,
    Adapter,
    Architecture,
    AttentionShape,
    DeviceRates,
    FeedForwardShape,
    Sharding,
    StepTime,
    TimeTerm,
    Tower,
    TowerWorkload,
    Workload,
    estimate_step_time,
    optimizer_time,
)
from validator.physics.architecture import Linear
from validator.physics.rates import attained_rates
from validator.physics.training_step import TrainingStep
from validator.physics.workload import AttentionImplementation, ExpertsForm

A100 = DeviceRates(312e12, 19.5e12, 2.039e12, 300e9, 0, 25e9, 200e9, 96, 1e9)
DENSE = Architecture(4096, 32, 32000, AttentionShape(32, 8, 128), FeedForwardShape(14336))
MIXTURE = Architecture(
    2048,
    16,
    32000,
    AttentionShape(16, 16, 128),
    FeedForwardShape(0, experts=64, experts_per_token=8, expert_width=1024),
)
SMALL = Architecture(512, 4, 32000, AttentionShape(8, 8, 64), FeedForwardShape(1024))
TOWER = Tower(1280, 32, 16, 80, 5120, (Linear("qkv", 1280, 3840), Linear("up", 1280, 5120)), 2560, input_values=1176)
FULL = Workload(method="full", precision="pure", micro_batch=4, length=4096, pads_batches=False, attention="flash")
LORA = FULL._replace(method="lora", precision="amp")
ZERO3 = Sharding(1, 8, ZERO_3)


def step(work: Workload, arch: Architecture = DENSE, device: DeviceRates = A100) -> StepTime:
    return estimate_step_time(arch, work, device)


def seconds(term: TimeTerm, work: Workload, arch: Architecture = DENSE, device: DeviceRates = A100) -> float:
    return step(work, arch, device).terms.get(term, 0.0)


def test_frozen_weights_have_no_gradient() -> None:
    """Of three products for each weight one is spared."""
    full, lora = (seconds(TimeTerm.MATMUL, work) for work in (FULL, LORA._replace(adapter=Adapter(targets=("v",)))))
    assert lora / full == pytest.approx(2 / 3, rel=0.05)


def test_badam_makes_gradients_of_one_block() -> None:
    full, block = (seconds(TimeTerm.MATMUL, FULL._replace(optimizer=name)) for name in ("adamw", "badam"))
    assert block / full == pytest.approx(2 / 3, rel=0.02)


def test_layers_below_the_first_trained_one_pass_forward_alone() -> None:
    freeze = FULL._replace(method="freeze", trainable_layers=8)
    third = seconds(TimeTerm.MATMUL, FULL) / 3
    assert seconds(TimeTerm.MATMUL, freeze) == pytest.approx(third + 2 * third / 4)
    assert seconds(TimeTerm.RECOMPUTATION, freeze) == pytest.approx(seconds(TimeTerm.RECOMPUTATION, FULL) / 4)


@pytest.mark.parametrize(
    ("work", "share"),
    [
        (FULL._replace(checkpointing="off"), 0.0),
        (FULL, 1.0),
        (FULL._replace(reentrant=False), 0.79),  # the product of 14336 and 4096 is the last of seven
        (LORA._replace(reentrant=False, adapter=Adapter(targets=("down",))), 1.0),  # its adapter needs its input
    ],
)
def test_checkpointing_computes_layers_again(work: Workload, share: float) -> None:
    recomputed = seconds(TimeTerm.RECOMPUTATION, work)
    whole = seconds(TimeTerm.RECOMPUTATION, work._replace(reentrant=True, checkpointing="layer"))
    assert recomputed / whole == pytest.approx(share, abs=0.03)


def test_a_kernel_without_mask_skips_what_comes_later() -> None:
    kinds: tuple[AttentionImplementation, ...] = ("flash", "sdpa", "eager")
    flash, masked, eager = (
        seconds(TimeTerm.ATTENTION, FULL._replace(attention=kind, pads_batches=True)) for kind in kinds
    )
    assert 2 * flash < masked < eager


def test_a_sliding_window_spares_distant_pairs() -> None:
    windowed = DENSE._replace(attn=DENSE.attn._replace(window=1024))
    long = FULL._replace(length=16384)
    assert seconds(TimeTerm.ATTENTION, long, windowed) < 0.7 * seconds(TimeTerm.ATTENTION, long)


def test_attention_of_a_device_without_flash_kernels_is_slower() -> None:
    assert seconds(TimeTerm.ATTENTION, FULL, device=A100._replace(attention_efficiency=0.5)) == pytest.approx(
        2 * seconds(TimeTerm.ATTENTION, FULL)
    )


def test_experts_take_what_their_tokens_ask_for() -> None:
    """Eight of 64 experts a token: a little more than eight experts of a dense block."""
    dense = MIXTURE._replace(ffn=FeedForwardShape(8 * 1024))
    routed = seconds(TimeTerm.EXPERTS, FULL, MIXTURE)
    inside = seconds(TimeTerm.MATMUL, FULL, dense) - seconds(TimeTerm.MATMUL, FULL, MIXTURE)
    assert 1.0 < routed / inside < 1.6


def test_experts_one_by_one_are_many_kernels() -> None:
    few = FULL._replace(micro_batch=1, length=512)
    loop = seconds(TimeTerm.KERNEL_LAUNCHES, few._replace(experts="separate"), MIXTURE)
    assert loop > seconds(TimeTerm.KERNEL_LAUNCHES, few, MIXTURE)


@pytest.mark.parametrize(("experts", "waits"), [("grouped", False), ("sliced", True), ("separate", True)])
def test_a_loop_over_experts_does_not_hide_behind_other_work(experts: ExpertsForm, waits: bool) -> None:
    """64 experts in each of 16 layers, twice forward and once backward. Behind all of the step they would vanish."""
    few = FULL._replace(experts=experts, micro_batch=1)
    assert (seconds(TimeTerm.KERNEL_LAUNCHES, few, MIXTURE) > 0.4) == waits


def test_the_gradient_of_a_slice_has_the_size_of_all_experts() -> None:
    """Four times for each of 64 experts: zeros are written, two factors of a sum read, the sum written."""
    more = seconds(TimeTerm.EXPERTS, FULL._replace(experts="sliced"), MIXTURE) - seconds(
        TimeTerm.EXPERTS, FULL, MIXTURE
    )
    layer = 2 * 64 * 3 * 2048 * 1024  # bytes of its experts' gradients
    assert more == pytest.approx(16 * 64 * 4 * layer / attained_rates(A100).bandwidth)


def test_slices_of_frozen_experts_have_no_gradient() -> None:
    forms: tuple[ExpertsForm, ...] = ("sliced", "grouped")
    sliced, grouped = (seconds(TimeTerm.EXPERTS, LORA._replace(experts=form), MIXTURE) for form in forms)
    assert sliced == grouped


def test_zero_3_fetches_each_parameter_of_a_leaf_module() -> None:
    """Three matrices of 64 experts in each of 16 layers, twice forward and once backward."""
    work = LORA._replace(precision="engine", experts="separate", adapter=Adapter(targets=("q",)))
    many, one = (work._replace(sharding=sharding) for sharding in (ZERO3, Sharding()))
    more = seconds(TimeTerm.KERNEL_LAUNCHES, many, MIXTURE) - seconds(TimeTerm.KERNEL_LAUNCHES, one, MIXTURE)
    assert more < 16 * 3 * (3 * 64 * 50e-6 + 20 * 250e-6)


def test_few_tokens_wait_for_the_processor() -> None:
    few = FULL._replace(micro_batch=1, length=128)
    assert step(few, SMALL).bottleneck == TimeTerm.KERNEL_LAUNCHES
    assert seconds(TimeTerm.KERNEL_LAUNCHES, FULL) < 0.001 * step(FULL).expected


@pytest.mark.parametrize(("stage", "held"), [(2, False), (3, True)])
def test_hooks_of_zero_3_hold_the_device_up(stage: int, held: bool) -> None:
    few = LORA._replace(
        precision="engine", sharding=ZERO3._replace(strategy=ZERO_STAGES[stage]), micro_batch=1, length=1024
    )
    assert (step(few).bottleneck == TimeTerm.KERNEL_LAUNCHES) == held


def test_fsdp_makes_each_parameter_anew() -> None:
    few = LORA._replace(micro_batch=1, length=512)
    gathered = few._replace(sharding=Sharding(1, 8, FSDP_FULL_SHARD))
    assert seconds(TimeTerm.KERNEL_LAUNCHES, gathered) > 2 * seconds(TimeTerm.KERNEL_LAUNCHES, few)


def test_adapters_make_more_modules_for_the_hooks() -> None:
    few = LORA._replace(precision="engine", sharding=ZERO3, adapter=Adapter(targets=("q",)), length=512)
    assert seconds(TimeTerm.KERNEL_LAUNCHES, few._replace(adapter=Adapter())) > 2 * seconds(
        TimeTerm.KERNEL_LAUNCHES, few
    )


def test_weights_of_few_bits_are_made_whole_in_each_pass() -> None:
    quantized = LORA._replace(quant_bits=4)
    assert seconds(TimeTerm.QUANTIZATION, quantized) > 0
    assert seconds(TimeTerm.QUANTIZATION, quantized._replace(micro_batch=8)) == seconds(
        TimeTerm.QUANTIZATION, quantized
    )
    twice = quantized._replace(accumulation=2)
    assert seconds(TimeTerm.QUANTIZATION, twice) == pytest.approx(2 * seconds(TimeTerm.QUANTIZATION, quantized))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"optimizer": "adamw"}, {"optimizer": "adamw_foreach"}),
        ({"optimizer": "adamw_8bit"}, {"optimizer": "adamw"}),
        ({"optimizer": "adamw"}, {"optimizer": "muon"}),
        ({"optimizer": "adamw"}, {"optimizer": "galore", "optimizer_rank": 512}),
        ({"optimizer": "apollo", "optimizer_rank": 512}, {"optimizer": "galore", "optimizer_rank": 512}),
        ({"optimizer": "badam"}, {"optimizer": "adamw_8bit"}),
        ({"optimizer": "adamw", "sharding": ZERO3}, {"optimizer": "adamw"}),
    ],
)
def test_the_update_moves_its_states(less: dict[str, object], more: dict[str, object]) -> None:
    low, high = (seconds(TimeTerm.OPTIMIZER, FULL._replace(**each)) for each in (less, more))  # type: ignore[arg-type]
    assert low < high


def test_an_offloaded_optimizer_leaves_the_device_alone() -> None:
    sharding = ZERO3._replace(offload_optimizer=True)
    assert seconds(TimeTerm.OPTIMIZER, FULL._replace(precision="engine", sharding=sharding)) == 0


@pytest.mark.parametrize(
    ("changes", "times"),
    [({"reference_logits": True}, 4 / 3), ({"reference_logits": True, "estimates_kl": True}, 2.0)],
)
def test_passes_without_gradients_count(changes: dict[str, object], times: float) -> None:
    more = FULL._replace(needs_full_logits=True, **changes)  # type: ignore[arg-type]
    assert seconds(TimeTerm.MATMUL, more) == pytest.approx(times * seconds(TimeTerm.MATMUL, FULL))


def test_towers_take_time_where_they_read_something() -> None:
    arch = DENSE._replace(towers=(TOWER,))
    frozen, trained = (
        LORA._replace(towers=(TowerWorkload(1024),)),
        FULL._replace(towers=(TowerWorkload(1024, trains=True, projector=True),)),
    )
    assert 0 < seconds(TimeTerm.TOWERS, frozen, arch) < seconds(TimeTerm.TOWERS, trained, arch)
    assert seconds(TimeTerm.TOWERS, LORA._replace(towers=(TowerWorkload(),)), arch) == 0


@pytest.mark.parametrize(("workers", "waits"), [(0, True), (8, False)])
def test_workers_make_numbers_of_pictures_beside_the_device(workers: int, waits: bool) -> None:
    arch, work = (
        DENSE._replace(towers=(TOWER,)),
        LORA._replace(towers=(TowerWorkload(1024),), loader_workers=workers),
    )
    assert (seconds(TimeTerm.DATA_LOADING, work, arch) > 0) == waits


def test_a_slow_loader_holds_a_fast_device_up() -> None:
    arch, work = DENSE._replace(towers=(TOWER,)), LORA._replace(towers=(TowerWorkload(4096),), loader_workers=1)
    quick = A100._replace(half_flops=100 * A100.half_flops, bandwidth=100 * A100.bandwidth)
    assert seconds(TimeTerm.DATA_LOADING, work, arch, quick) > 0


def test_fused_kernels_spare_traffic() -> None:
    fused = FULL._replace(fused_kernels=True, loss="fused")
    for term in (TimeTerm.ELEMENTWISE, TimeTerm.HEAD):
        assert seconds(term, fused) < seconds(term, FULL)


def test_autocast_casts_weights_and_inputs() -> None:
    assert seconds(TimeTerm.ELEMENTWISE, FULL._replace(precision="amp")) > seconds(TimeTerm.ELEMENTWISE, FULL)


def test_fp32_products_run_at_their_own_rate() -> None:
    assert seconds(TimeTerm.MATMUL, FULL._replace(precision="fp32")) > 10 * seconds(TimeTerm.MATMUL, FULL)


def test_small_products_are_less_efficient() -> None:
    """A tenth of the tokens takes more than a tenth of the time."""
    few = FULL._replace(micro_batch=1, length=1638)
    assert 0.1 < seconds(TimeTerm.MATMUL, few) / seconds(TimeTerm.MATMUL, FULL) < 0.13


@pytest.mark.parametrize(
    ("changes", "gap"),
    [
        ({}, ""),
        ({"quant_bits": 8}, "8-bit weights"),
        ({"needs_full_logits": True}, "preference and reward stages"),
        ({"sharding": Sharding(2, 8, ZERO_2)}, "runs on several nodes"),
    ],
)
def test_what_few_measured_widens_the_band(changes: dict[str, object], gap: str) -> None:
    known, other = step(LORA), step(LORA._replace(**changes))  # type: ignore[arg-type]
    assert other.gaps == ((gap,) if gap else ())
    assert (other.high / other.expected > known.high / known.expected) == bool(gap)


def test_quantized_weights_elsewhere_than_with_cuda_may_take_several_times_as_long() -> None:
    ported = A100._replace(cuda=False)
    assert step(LORA, device=ported) == step(LORA)
    known, other = step(LORA._replace(quant_bits=4)), step(LORA._replace(quant_bits=4), device=ported)
    assert other.gaps == ("quantized weights on other devices than NVIDIA's",)
    assert other.expected == known.expected
    assert other.high > 4 * other.expected
    assert known.high < 2 * known.expected


def test_a_device_that_nobody_timed_has_a_wider_band() -> None:
    known, none = step(LORA), step(LORA, device=A100._replace(evidence="none"))
    assert none.expected == known.expected
    assert none.low < known.low
    assert none.high > known.high
    assert none.gaps == ("this kind of device",)


def test_muon_multiplies_what_is_inside_the_layers() -> None:
    """Embedding and output layer are AdamW's, however many tokens they know."""
    muon = FULL._replace(optimizer="muon")
    small, large = (
        optimizer_time._matmul_seconds(TrainingStep(DENSE._replace(vocab=vocab), muon), attained_rates(A100))
        for vocab in (1000, 64000)
    )
    assert small == large > 0
