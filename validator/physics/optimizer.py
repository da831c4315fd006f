"""Gradients, communication buckets and optimizer states on one device, and the workspace of the optimizer step.
Bytes."""

from __future__ import annotations

from functools import lru_cache

from .decoder_layers import DecoderLayer
from .training_step import TrainingStep, largest_trained_tensor, trained_bytes, trained_matrices
from .workload import DDP, EIGHT_BIT_SIZE, ZERO_3


def gradient_bytes(step: TrainingStep) -> float:
    """Bytes of all gradients on one device at the end of the backward pass; offloading the optimizer also offloads
    sharded gradients."""
    if step.work.layerwise_update or step.optimizer.states == "one layer":
        return 0.0
    unsharded = trained_bytes(step, step.sizes.gradient)
    if step.strategy.shards_gradients:
        return 0.0 if step.sharding.offload_optimizer else unsharded / step.sharding.world_size
    return unsharded


def accumulated_gradient_bytes(step: TrainingStep) -> float:
    """Bytes of gradients between micro batches. FSDP shards them only in the last micro batch: before that every device
    has all of them, in the precision of its gathered weights (transformers and accelerate run the others under
    no_sync)."""
    strategy = step.strategy
    if strategy.shards_gradients and strategy.reduces == "last micro batch" and step.work.accumulation > 1:
        return step.sizes.compute * step.trained_elements
    return gradient_bytes(step)


def gradients_before_backward(step: TrainingStep) -> float:
    """Bytes of gradients before the backward pass: those of earlier micro batches, and ZeRO-3's permanent buffer."""
    return accumulated_gradient_bytes(step) if step.work.accumulation > 1 or step.strategy == ZERO_3 else 0.0


def gradients_so_far(step: TrainingStep, done: float) -> float:
    """Bytes of gradients once `done` elements of base weights have one.

    ZeRO's sharded gradients have a buffer of their own from the start. With accumulation all gradients exist, and the
    new one of a tied output layer waits for the embedding's."""
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
    """Bytes of one weight gradient of `elements` in the making: in compute precision, and in its own if it is added to
    an earlier one. FSDP makes those of a whole layer."""
    if step.trains_adapter:
        return 0.0
    sizes = step.sizes
    if step.strategy.fsdp:
        return sizes.compute * layer.elements
    own = sizes.gradient if step.work.accumulation > 1 or step.strategy.has_gradient_buffer else 0.0
    return elements * (own + (sizes.compute if sizes.autocast_copies else 0.0))


def communication_bucket_bytes(step: TrainingStep) -> float:
    """Bytes of communication buffers in the backward pass. DDP keeps every gradient a second time in its buckets
    (PyTorch DistributedDataParallel without bucket views). ZeRO allocates whole reduce buckets, two under overlap_comm,
    and a gradient of the largest tensor if gradients are offloaded."""
    sharding, strategy, gradient = step.sharding, step.strategy, step.sizes.gradient
    if strategy.fsdp or (sharding.world_size == 1 and not strategy.deepspeed):
        return 0.0
    if not strategy.deepspeed:
        return gradient * step.trained_elements
    if not strategy.shards_optimizer_states:
        return gradient * min(sharding.reduce_bucket, step.trained_elements)
    doubled = 2 if sharding.overlap_comm and not strategy.shards_weights else 1
    buckets = gradient * sharding.reduce_bucket * doubled if sharding.contiguous_gradients else 0.0
    if sharding.offload_optimizer and not strategy.shards_weights:
        buckets += gradient * largest_trained_tensor(step)
    return buckets


def _low_rank_state_bytes(step: TrainingStep, moment: float) -> float:
    """Bytes of the states of GaLore (arXiv 2403.03507) and APOLLO (2412.05270): moments in a rank-r space of the
    layers' linear modules with the projection itself; all other parameters keep ordinary moments."""
    projected, inside = 0.0, 0
    for count, layer in () if step.trains_adapter else step.backward_layers:
        for linear in layer.linears:
            small, large = sorted((linear.inputs, linear.outputs))
            rank = min(step.work.optimizer_rank, small)
            projected += count * linear.number * rank * (2 * large * moment + small * moment)
            inside += count * linear.elements
    return projected + 2 * moment * (step.trained_elements - inside)


def _adafactor_state_bytes(step: TrainingStep) -> float:
    """Bytes of Adafactor's states (arXiv 1804.04235): one fp32 row and one column of second moments for each matrix."""
    matrices = trained_matrices(step)
    vectors = step.trained_elements - sum(matrix.elements * matrix.number for matrix in matrices)
    return 4.0 * (sum((matrix.outputs + matrix.inputs) * matrix.number for matrix in matrices) + vectors)


def _muon_state_bytes(step: TrainingStep, moment: float) -> float:
    """Bytes of Muon's states: one moment for hidden matrices; AdamW's two for embeddings, output layer and vectors."""
    hidden = (matrix for matrix in trained_matrices(step) if matrix.outputs != step.arch.vocab)
    return moment * (2 * step.trained_elements - sum(matrix.elements * matrix.number for matrix in hidden))


def _elements_with_fp32_moments(step: TrainingStep) -> int:
    """Elements of embeddings, whose moments stay in fp32 under bitsandbytes' 8-bit optimizers (transformers' Trainer
    registers the exception; an engine's partitions hide the embedding from it)."""
    return step.embedding_elements if step.trains_embedding and step.strategy == DDP else 0


@lru_cache(maxsize=64)
def optimizer_state_bytes(step: TrainingStep) -> float:
    """Bytes of the optimizer states of the whole model, without the engine's master weights."""
    optimizer, moment = step.optimizer, step.optimizer.moment_size or step.sizes.moment
    match optimizer.states:
        case "low rank":
            return _low_rank_state_bytes(step, moment)
        case "factored":
            return _adafactor_state_bytes(step)
        case "muon":
            return _muon_state_bytes(step, moment)
        case "one layer":
            return 16.0 * step.largest_layer  # fp32 copy, gradient and two moments (BAdam, arXiv 2404.02827)
    if not optimizer.moment_size:
        return optimizer.moments * trained_bytes(step, moment)
    precise = _elements_with_fp32_moments(step) if moment == EIGHT_BIT_SIZE else 0
    return optimizer.moments * (moment * (step.trained_elements - precise) + 4.0 * precise)


def states_and_master_bytes(step: TrainingStep) -> float:
    """Bytes of the moments and the engine's master weights of the whole model."""
    return optimizer_state_bytes(step) + step.sizes.master * step.trained_elements


def optimizer_partitions(step: TrainingStep) -> int:
    """Number of devices over which the optimizer states are sharded."""
    return step.sharding.world_size if step.strategy.shards_optimizer_states else 1


def paged_state_bytes(step: TrainingStep) -> float:
    """Bytes of moments in memory that the driver moves to the host under pressure."""
    return optimizer_state_bytes(step) if step.work.optimizer.startswith("paged_") else 0.0


def optimizer_states_on_device(step: TrainingStep) -> float:
    """Bytes of moments and master weights on one device. Paged moments are counted on the host; master weights are
    never paged."""
    if step.sharding.offload_optimizer:
        return 0.0
    return (states_and_master_bytes(step) - paged_state_bytes(step)) / optimizer_partitions(step)


def optimizer_workspace(step: TrainingStep) -> float:
    """Temporary bytes of the optimizer step. A foreach step holds the root of every second moment at once; Adafactor
    holds the update and its square for the largest matrix, and fp32 copies of a half-precision gradient and parameter.
    Fused steps need none."""
    if step.sharding.offload_optimizer:
        return 0.0
    if step.strategy.deepspeed:
        return _deepspeed_workspace(step)
    if step.optimizer.foreach:
        return trained_bytes(step, step.sizes.moment) / optimizer_partitions(step)
    copies_half = step.optimizer.states == "factored" and step.sizes.gradient != 4
    return 4.0 * (4 if copies_half else step.optimizer.largest_copies) * largest_trained_tensor(step)


def _deepspeed_workspace(step: TrainingStep) -> float:
    """Temporary bytes of a ZeRO engine's step, which flattens this device's gradients, copies them to fp32 and updates;
    stage 3 one sub-group at a time."""
    share, gradient = step.trained_elements / optimizer_partitions(step), step.sizes.gradient
    if step.strategy.shards_weights:
        share = min(share, step.sharding.sub_group_size)
    copying = gradient + (4.0 if gradient < 4 else 0.0)
    return share * max(copying, 8.0 if step.optimizer.foreach else 4.0)
