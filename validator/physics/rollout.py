"""Memory and time of PPO's rollouts: the answers that the policy generates, and the passes that score them, before it
trains on them.

LLaMA-Factory's PPO trainer builds on trl (train/ppo/trainer.py, CustomPPOTrainer; trl, trainer/ppo_trainer.py,
PPOTrainer.step)."""

from __future__ import annotations

from validator.physics import weights
from validator.physics.estimate import DeviceTerm
from validator.physics.micro_batch import micro_batch_costs
from validator.physics.rates import DeviceRates
from validator.physics.training_step import TrainingStep, trained_bytes, training_step
from validator.physics.workload import ZERO_3, Sharding

# Passes over a finished answer without gradients: the policy's and the reference's log-probabilities (PPOTrainer.step)
# and the rewards (CustomPPOTrainer.get_rewards).
_SCORING_PASSES = 3


def gathered_model_bytes(step: TrainingStep) -> float:
    """Bytes of the whole policy that each device holds beside its shard while answers are generated. ZeRO-3 gathers all
    parameters at once for that (trl, models/utils.py, unwrap_model_for_generation). Zero for other
    strategies, and on a single device."""
    if step.strategy != ZERO_3 or step.sharding.world_size == 1:
        return 0.0
    adapter = trained_bytes(step, step.sizes.adapter) if step.trains_adapter else 0.0
    return weights.shardable_weight_bytes(step) + adapter


def kv_cache_bytes(step: TrainingStep) -> float:
    """Bytes of the keys and values of all tokens of a micro batch, prompt and answer, in all layers with attention."""
    total = 0.0
    for count, layer in step.layers:
        if not layer.mixer:
            attn = step.for_layer(layer).arch.attn
            total += count * (attn.key_width + attn.value_width)
    return step.sizes.compute * step.tokens * total


def rollout_seconds(step: TrainingStep, device: DeviceRates) -> float:
    """Seconds that one PPO step spends on generating and scoring answers; zero outside of PPO. Every answer has
    `new_tokens` tokens, which are generated one after another. Each needs a forward pass of a single token, with whole
    weights on the device and without the hooks of ZeRO-3 (trl, models/utils.py, remove_hooks)."""
    rollout = step.work.rollout
    if rollout is None:
        return 0.0
    single = training_step(step.arch, step.work._replace(length=1, sharding=Sharding()))
    generating = rollout.new_tokens * micro_batch_costs(single, device).forward
    scoring = _SCORING_PASSES * micro_batch_costs(step, device).forward
    return rollout.batches * step.work.accumulation * (generating + scoring)


def rollout_terms(step: TrainingStep) -> dict[DeviceTerm, float]:
    """Bytes by term that generation needs beside what stays on the device; empty outside of PPO."""
    if step.work.rollout is None:
        return {}
    return {DeviceTerm.GATHERED_WEIGHTS: gathered_model_bytes(step), DeviceTerm.KV_CACHE: kv_cache_bytes(step)}
