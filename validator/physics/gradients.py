"""Gradients on the worst device while the backward pass makes them, and the buckets that carry them to other devices.
Bytes."""

from __future__ import annotations

from validator.physics.decoder_layers import DecoderLayer
from validator.physics.training_step import TrainingStep, largest_trained_tensor, trained_bytes
from validator.physics.workload import ZERO_3


def gradient_bytes(step: TrainingStep) -> float:
    """Bytes of all gradients at the end of the backward pass. Offloading the optimizer sends sharded gradients with
    it."""
    if step.work.layerwise_update or step.optimizer.states == "one layer":
        return 0.0
    whole = trained_bytes(step, step.sizes.gradient)
    if step.strategy.shards_gradients:
        return 0.0 if step.sharding.offload_optimizer else whole / step.sharding.world_size
    return whole


def accumulated_gradient_bytes(step: TrainingStep) -> float:
    """Gradients while micro batches follow one another. FSDP spreads them only in the last one: until then every device
    has all of them, in the precision of its gathered weights (transformers and accelerate run the others under
    no_sync)."""
    strategy = step.strategy
    if strategy.shards_gradients and strategy.reduces == "last micro batch" and step.work.accumulation > 1:
        return step.sizes.compute * step.trained_elements
    return gradient_bytes(step)


def gradients_before_backward(step: TrainingStep) -> float:
    """Gradients there before the backward pass: those of earlier micro batches, and ZeRO-3's standing buffer."""
    return accumulated_gradient_bytes(step) if step.work.accumulation > 1 or step.strategy == ZERO_3 else 0.0


def gradients_so_far(step: TrainingStep, done: float) -> float:
    """Gradients when `done` base elements have theirs.

    ZeRO's sharded gradients have a buffer of their own from the start; with accumulation all are there, and a tied
    output layer's new one waits for the embedding's."""
    full, each, fsdp = accumulated_gradient_bytes(step), step.sizes.gradient, step.strategy.fsdp
    if step.strategy.has_gradient_buffer or not full:
        return full
    later = each * step.trained_tower_elements / (step.sharding.world_size if fsdp else 1)
    if step.work.accumulation > 1:
        waiting = step.arch.tied and step.work.method == "full" and not fsdp
        return full + (each * step.embedding_elements if waiting else 0.0)
    if step.work.method == "full":
        return each * done / (step.sharding.world_size if fsdp else 1)
    head = min(each, step.sizes.modules_to_save) * step.lm_head_elements if step.work.adapter.full_head else 0.0
    share = done / max(sum(number * layer.elements for number, layer in step.backward_layers), 1)
    return min(full - later, head + (full - later) * share)


def gradient_being_computed(step: TrainingStep, layer: DecoderLayer, elements: float) -> float:
    """One weight gradient of `elements` that is being made: in compute precision, and in its own where it is added to
    an earlier one. FSDP makes those of a whole layer."""
    if step.trains_adapter:
        return 0.0
    sizes = step.sizes
    if step.strategy.fsdp:
        return sizes.compute * layer.elements
    own = sizes.gradient if step.work.accumulation > 1 or step.strategy.has_gradient_buffer else 0.0
    return elements * (own + (sizes.compute if sizes.autocast_copies else 0.0))


def communication_bucket_bytes(step: TrainingStep) -> float:
    """Communication buffers of the backward pass. Plain data parallel keeps every gradient a second time in its buckets
    (PyTorch DistributedDataParallel without bucket views); ZeRO allocates whole reduce buckets, two if they overlap,
    and beside them one gradient of the largest tensor when gradients leave for the host."""
    sharding, strategy, gradient = step.sharding, step.strategy, step.sizes.gradient
    if strategy.fsdp or (sharding.world_size == 1 and not strategy.deepspeed):
        return 0.0
    if not strategy.deepspeed:
        return gradient * step.trained_elements
    if not strategy.shards_optimizer_states:
        return gradient * min(sharding.reduce_bucket, step.trained_elements)
    doubled = 2 if sharding.overlap_comm and not strategy.shards_weights else 1
    whole = gradient * sharding.reduce_bucket * doubled if sharding.contiguous_gradients else 0.0
    if sharding.offload_optimizer and not strategy.shards_weights:
        whole += gradient * largest_trained_tensor(step)
    return whole
