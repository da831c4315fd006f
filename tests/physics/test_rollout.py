"""PPO: what generating answers needs of memory and time, as trl 0.9.6 does it under LLaMA-Factory's trainer."""

from __future__ import annotations

import pytest

from validator.knowledge.devices import find_device
from validator.knowledge.models import find_model
from validator.physics import DDP, ZERO_2, ZERO_3, Adapter, Architecture, Sharding, Workload, estimate_device_memory
from validator.physics.estimate import GIB, DeviceTerm, TimeTerm
from validator.physics.peaks import generation_phase
from validator.physics.rates import DeviceRates
from validator.physics.step_time import estimate_step_time
from validator.physics.training_step import TrainingStep
from validator.physics.workload import Rollout, ShardingStrategy


def arch_of(name: str) -> Architecture:
    model = find_model(name)
    assert model
    return model.arch


def rates_of(device: str) -> DeviceRates:
    rates = find_device(device)[0].rates(8)
    assert rates
    return rates


ARCH, A100 = arch_of("Qwen/Qwen2-7B-Instruct"), rates_of("a100-80g")
PPO = Workload(
    adapter=Adapter(rank=8), length=1024 + 512, needs_full_logits=True, rollout=Rollout(512, batches=2, epochs=4)
)


def spread(strategy: ShardingStrategy, devices: int) -> Workload:
    return PPO._replace(precision="engine" if strategy.deepspeed else "amp", sharding=Sharding(1, devices, strategy))


@pytest.mark.parametrize(
    ("strategy", "devices", "is_gathered"), [(ZERO_3, 8, True), (ZERO_3, 1, False), (ZERO_2, 8, False), (DDP, 8, False)]
)
def test_zero_3_gathers_the_whole_policy_to_generate(
    strategy: ShardingStrategy, devices: int, is_gathered: bool
) -> None:
    step = TrainingStep(ARCH, spread(strategy, devices))
    gathered = generation_phase(step)[DeviceTerm.GATHERED_WEIGHTS]
    assert (gathered > 2.0 * step.parameters) == is_gathered
    assert bool(gathered) == is_gathered


def test_the_cache_holds_keys_and_values_of_prompt_and_answer() -> None:
    """28 layers of 4 heads of 128 elements, keys and values, 2 bytes each: 57,344 bytes a token."""
    step = TrainingStep(ARCH, PPO._replace(micro_batch=2))
    assert generation_phase(step)[DeviceTerm.KV_CACHE] == 2 * 1536 * 57_344


def test_other_stages_generate_nothing() -> None:
    step = TrainingStep(ARCH, PPO._replace(rollout=None))
    assert generation_phase(step) == {}
    assert TimeTerm.ROLLOUT not in estimate_step_time(ARCH, step.work, A100).terms


def test_a_policy_that_trains_in_shards_may_not_fit_whole() -> None:
    """Qwen2-72B with LoRA under ZeRO-3 on eight cards of 80 GB ran out of memory at the first answer."""
    large, ppo = arch_of("Qwen/Qwen2-72B-Instruct"), spread(ZERO_3, 8)
    assert estimate_device_memory(large, ppo._replace(rollout=None)).high < 60 * GIB
    assert estimate_device_memory(large, ppo).low > 80 * GIB


def test_answers_take_the_time_of_their_tokens_and_are_trained_on_several_times() -> None:
    assert PPO.rollout
    usual = estimate_step_time(ARCH, PPO, A100).terms
    longer = PPO._replace(rollout=PPO.rollout._replace(new_tokens=1024))
    once = PPO._replace(rollout=PPO.rollout._replace(epochs=1))
    assert 1.8 < estimate_step_time(ARCH, longer, A100).terms[TimeTerm.ROLLOUT] / usual[TimeTerm.ROLLOUT] < 2
    assert estimate_step_time(ARCH, once, A100).terms[TimeTerm.MATMUL] == pytest.approx(usual[TimeTerm.MATMUL] / 4)
    assert estimate_step_time(ARCH, once, A100).terms[TimeTerm.ROLLOUT] == usual[TimeTerm.ROLLOUT]
