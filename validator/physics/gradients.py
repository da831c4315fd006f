"""Gradients on the worst device while the backward pass makes them, and the buckets that carry them to other devices.
Bytes."""

from __future__ import annotations

from validator.physics.decoder_layers import DecoderLayer
from validator.physics.training_step import TrainingStep, largest_trained_tensor, trained_bytes


def gradient_bytes(run: TrainingStep) -> float:
    """All gradients at the end of the backward pass. Offloading the optimizer sends partitioned gradients with it."""
    if run.work.layerwise_update or run.work.optimizer == "badam":
        return 0.0
    whole = trained_bytes(run, run.sizes.gradient)
    if run.sharding.zero >= 2 or run.sharding.fsdp:
        return 0.0 if run.sharding.offload_optimizer else whole / run.sharding.world
    return whole


def accumulated_gradient_bytes(run: TrainingStep) -> float:
    """Gradients while micro batches follow one another. FSDP spreads them only in the last one: until then every device
    has all of them, in the precision of its gathered weights (transformers and accelerate run the others under
    no_sync)."""
    if run.sharding.fsdp and run.work.accumulation > 1:
        return run.sizes.compute * run.trained
    return gradient_bytes(run)


def gradients_before_backward(run: TrainingStep) -> float:
    """Gradients there before the backward pass: those of earlier micro batches, and ZeRO-3's standing buffer."""
    return accumulated_gradient_bytes(run) if run.work.accumulation > 1 or run.sharding.zero == 3 else 0.0


def gradients_so_far(run: TrainingStep, done: float) -> float:
    """Gradients when `done` base elements have theirs.

    ZeRO's sharded gradients have a buffer of their own from the start; with accumulation all are there, and a tied
    output layer's new one waits for the embedding's."""
    full, each, fsdp = accumulated_gradient_bytes(run), run.sizes.gradient, run.sharding.fsdp
    if run.sharding.zero >= 2 or not full:
        return full
    later = each * run.trained_in_towers / (run.sharding.world if fsdp else 1)
    if run.work.accumulation > 1:
        waiting = run.arch.tied and run.work.method == "full" and not fsdp
        return full + (each * run.embedding if waiting else 0.0)
    if run.work.method == "full":
        return each * done / (run.sharding.world if fsdp else 1)
    head = min(each, run.sizes.saved) * run.head if run.work.adapter.full_head else 0.0
    share = done / max(sum(number * block.elements for number, block in run.visited), 1)
    return min(full - later, head + (full - later) * share)


def gradient_being_computed(run: TrainingStep, block: DecoderLayer, elements: float) -> float:
    """One weight gradient of `elements` that is being made: in compute precision, and in its own where it is added to
    an earlier one. FSDP makes those of a whole layer."""
    if run.adapts:
        return 0.0
    sizes = run.sizes
    if run.sharding.fsdp:
        return sizes.compute * block.elements
    own = sizes.gradient if run.work.accumulation > 1 or run.sharding.zero >= 2 else 0.0
    return elements * (own + (sizes.compute if sizes.casts else 0.0))


def communication_bucket_bytes(run: TrainingStep) -> float:
    """Communication buffers of the backward pass. Plain data parallel keeps every gradient a second time in its buckets
    (PyTorch DistributedDataParallel without bucket views); ZeRO allocates whole reduce buckets, two if they overlap,
    and beside them one gradient of the largest tensor when gradients leave for the host."""
    sharding, gradient = run.sharding, run.sizes.gradient
    if sharding.fsdp or (sharding.world == 1 and not sharding.engine):
        return 0.0
    if not sharding.engine:
        return gradient * run.trained
    if sharding.zero == 0:
        return gradient * min(sharding.reduce_bucket, run.trained)
    doubled = 2 if sharding.overlap and sharding.zero < 3 else 1
    whole = gradient * sharding.reduce_bucket * doubled if sharding.contiguous_gradients else 0.0
    if sharding.offload_optimizer and sharding.zero < 3:
        whole += gradient * largest_trained_tensor(run)
    return whole
