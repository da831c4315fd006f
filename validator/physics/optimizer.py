"""Bytes of gradients, communication buckets and optimizer states on one device, and of the temporary tensors of the
optimizer step."""

from __future__ import annotations

from functools import lru_cache

from .decoder_layers import DecoderLayer
from .training_step import TrainingStep, largest_trained_tensor, trained_bytes, trained_matrices
from .workload import DDP, EIGHT_BIT_SIZE, ZERO_3


def gradient_bytes(step: TrainingStep) -> float:
    """Bytes of all gradients on one device at the end of the backward pass. Zero if the optimizer updates layer by
    layer, or if sharded gradients are offloaded with the optimizer."""
    if step.work.layerwise_update or step.optimizer.states == "one layer":
        return 0.0
    unsharded = trained_bytes(step, step.sizes.gradient)
    if step.strategy.shards_gradients:
        return 0.0 if step.sharding.offload_optimizer else unsharded / step.sharding.shard_devices
    return unsharded + fp32_gradient_buffer_bytes(step)


def fp32_gradient_buffer_bytes(step: TrainingStep) -> float:
    """Bytes of the buffer in which DeepSpeed's BF16_Optimizer sums the gradients of the micro batches. Every device has
    all of it, from the start of the run (runtime/bf16_optimizer.py, fp32_groups_gradients_flat)."""
    return 4.0 * step.trained_elements if step.strategy.sums_gradients_in_fp32 else 0.0


def accumulated_gradient_bytes(step: TrainingStep) -> float:
    """Bytes of gradients on one device between the micro batches of gradient accumulation. FSDP shards gradients only
    in the last micro batch. Until then every device holds all gradients in the precision of its gathered weights
    (transformers and accelerate run the other micro batches under no_sync)."""
    strategy = step.strategy
    if strategy.shards_gradients and strategy.reduces == "last micro batch" and step.work.accumulation > 1:
        return step.sizes.compute * step.trained_elements
    return gradient_bytes(step)


def gradients_before_backward(step: TrainingStep) -> float:
    """Bytes of gradients that exist before the backward pass: the gradients of earlier micro batches, and the permanent
    gradient buffer of ZeRO-3 or BF16_Optimizer."""
    if step.work.accumulation > 1 or step.strategy == ZERO_3:
        return accumulated_gradient_bytes(step)
    return fp32_gradient_buffer_bytes(step)


def gradients_so_far(step: TrainingStep, done: float) -> float:
    """Bytes of gradients on one device at the moment when `done` elements of the base model have their gradient.

    ZeRO's sharded gradients have a buffer of their own from the start, so all gradients count. With gradient
    accumulation all gradients of the earlier micro batches exist, and the new gradient of a tied output layer is kept
    in addition until the embedding's gradient is computed."""
    buffer = fp32_gradient_buffer_bytes(step)
    return buffer + _gradients_outside_buffer(step, done, accumulated_gradient_bytes(step) - buffer)


def _gradients_outside_buffer(step: TrainingStep, done: float, total: float) -> float:
    each, fsdp = step.sizes.gradient, step.strategy.fsdp
    if step.strategy.has_gradient_buffer or not total:
        return total
    towers = each * step.trained_tower_elements / (step.sharding.shard_devices if fsdp else 1)
    if step.work.accumulation > 1:
        is_waiting = step.arch.tied and step.work.method == "full" and not fsdp
        return total + (each * step.embedding_elements if is_waiting else 0.0)
    if step.work.method == "full":
        return each * done / (step.sharding.shard_devices if fsdp else 1)
    head = min(each, step.sizes.modules_to_save) * step.lm_head_elements if step.work.adapter.full_head else 0.0
    visited = sum(number * layer.elements for number, layer in step.backward_layers)
    share = 1.0 if step.has_mixed_adapters else done / max(visited, 1)  # which layers have the adapters varies
    return min(total - towers, head + (total - towers) * share)


def gradient_being_computed(step: TrainingStep, layer: DecoderLayer, elements: float) -> float:
    """Bytes of a weight gradient of `elements` elements while it is computed: in compute precision under autocast, and
    also in the gradient's own precision if it is added to an earlier gradient. Under FSDP the gradients of the whole
    `layer` count, in compute precision. Zero if only an adapter trains."""
    if step.trains_adapter:
        return 0.0
    sizes = step.sizes
    if step.strategy.fsdp:
        return sizes.compute * layer.elements
    size = sizes.gradient if step.work.accumulation > 1 or step.strategy.has_gradient_buffer else 0.0
    return elements * (size + (sizes.compute if sizes.autocast_copies else 0.0))


def communication_bucket_bytes(step: TrainingStep) -> float:
    """Bytes of communication buffers on one device during the backward pass. Plain data parallel keeps every gradient a
    second time in its buckets (PyTorch DistributedDataParallel without bucket views). ZeRO allocates whole reduce
    buckets, two of them if communication overlaps. If gradients are offloaded to the host, ZeRO also keeps one gradient
    of the largest tensor."""
    sharding, strategy, gradient = step.sharding, step.strategy, step.sizes.gradient
    if strategy.fsdp or (sharding.world_size == 1 and not strategy.deepspeed):
        return 0.0
    if not strategy.deepspeed:
        return gradient * step.trained_elements
    if strategy.sums_gradients_in_fp32:  # after the backward pass: part of the optimizer step
        return 0.0
    if not strategy.shards_optimizer_states:
        return gradient * min(sharding.reduce_bucket, step.trained_elements)
    doubled = 2 if sharding.overlap_comm and not strategy.shards_weights else 1
    buckets = gradient * sharding.reduce_bucket * doubled if sharding.contiguous_gradients else 0.0
    if sharding.offload_optimizer and not strategy.shards_weights:
        buckets += gradient * largest_trained_tensor(step)
    return buckets


def _low_rank_state_bytes(step: TrainingStep, moment: float) -> float:
    """Bytes of the states of GaLore (arXiv 2403.03507) and APOLLO (2412.05270), with `moment` bytes per element. The
    moments of the layers' linear modules live in a space of low rank, beside the projection matrix itself. All other
    parameters keep ordinary moments."""
    total, elements = 0.0, 0
    for count, layer in () if step.trains_adapter else step.backward_layers:
        for linear in layer.linears:
            width, length = sorted((linear.inputs, linear.outputs))
            rank = min(step.work.optimizer_rank, width)
            total += count * linear.number * rank * (2 * length * moment + width * moment)
            elements += count * linear.elements
    return total + 2 * moment * (step.trained_elements - elements)


def _adafactor_state_bytes(step: TrainingStep) -> float:
    """Bytes of the states of Adafactor (arXiv 1804.04235): for each matrix one row and one column of second moments, in
    fp32, and for each vector its second moments."""
    matrices = trained_matrices(step)
    vectors = step.trained_elements - sum(matrix.elements * matrix.number for matrix in matrices)
    return 4.0 * (sum((matrix.outputs + matrix.inputs) * matrix.number for matrix in matrices) + vectors)


def _muon_state_bytes(step: TrainingStep, moment: float) -> float:
    """Bytes of the states of Muon, with `moment` bytes per element. Muon keeps one moment for hidden matrices;
    embeddings, output layer and vectors keep AdamW's two moments."""
    matrices = (matrix for matrix in trained_matrices(step) if matrix.outputs != step.arch.vocab)
    return moment * (2 * step.trained_elements - sum(matrix.elements * matrix.number for matrix in matrices))


def _elements_with_fp32_moments(step: TrainingStep) -> int:
    """Number of elements of the embedding whose moments stay in fp32 although bitsandbytes keeps all other moments in 8
    bits (transformers' Trainer registers this exception). Zero if the embedding does not train, and under DeepSpeed and
    FSDP, whose partitions hide the embedding from the exception."""
    return step.embedding_elements if step.trains_embedding and step.strategy == DDP else 0


@lru_cache(maxsize=64)
def optimizer_state_bytes(step: TrainingStep) -> float:
    """Bytes of the optimizer states of the whole model, over all devices. The fp32 master weights of DeepSpeed's engine
    are not included."""
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
    fp32_elements = _elements_with_fp32_moments(step) if moment == EIGHT_BIT_SIZE else 0
    return optimizer.moments * (moment * (step.trained_elements - fp32_elements) + 4.0 * fp32_elements)


def states_and_master_bytes(step: TrainingStep) -> float:
    """Bytes of the optimizer states and of the engine's fp32 master weights, for the whole model."""
    return optimizer_state_bytes(step) + step.sizes.master * step.trained_elements


def optimizer_partitions(step: TrainingStep) -> int:
    """Number of devices over which the optimizer states are sharded; 1 if every device has all of them."""
    return step.sharding.shard_devices if step.strategy.shards_optimizer_states else 1


def paged_state_bytes(step: TrainingStep) -> float:
    """Bytes of paged optimizer states, which the driver moves to the host when device memory runs short. Zero if the
    optimizer is not paged."""
    return optimizer_state_bytes(step) if step.work.optimizer.startswith("paged_") else 0.0


def optimizer_states_on_device(step: TrainingStep) -> float:
    """Bytes of optimizer states and master weights on one device; 0 if the optimizer is offloaded. Paged states are
    counted on the host. Master weights are never paged."""
    if step.sharding.offload_optimizer:
        return 0.0
    return (states_and_master_bytes(step) - paged_state_bytes(step)) / optimizer_partitions(step)


def optimizer_workspace(step: TrainingStep) -> float:
    """Temporary bytes of the optimizer step on one device. A foreach step holds the square root of every second moment
    at once. Adafactor holds the update and its square for the largest matrix, and fp32 copies of gradient and parameter
    if these are half precision. Fused steps need no temporary memory."""
    if step.sharding.offload_optimizer:
        return 0.0
    if step.strategy.deepspeed and step.sizes.master:
        return _deepspeed_workspace(step)
    if step.optimizer.foreach:
        return trained_bytes(step, step.sizes.moment) / optimizer_partitions(step)
    has_copies = step.optimizer.states == "factored" and step.sizes.gradient != 4
    return 4.0 * (4 if has_copies else step.optimizer.largest_copies) * largest_trained_tensor(step)


def _deepspeed_workspace(step: TrainingStep) -> float:
    """Temporary bytes of the optimizer step of a DeepSpeed engine on one device. The engine flattens the device's
    gradients, copies them to fp32 and updates the weights. Stage 3 does this for one sub-group at a time.

    BF16_Optimizer has fp32 gradients already. It reduces them in half precision, all at once (runtime/engine.py,
    allreduce_bucket), then makes the step of its partition."""
    if step.strategy.sums_gradients_in_fp32:
        reduced = step.sizes.compute * step.trained_elements if step.sharding.world_size > 1 else 0.0
        square_roots = 4.0 * step.trained_elements / optimizer_partitions(step) if step.optimizer.foreach else 0.0
        return max(reduced, square_roots)
    share, gradient = step.trained_elements / optimizer_partitions(step), step.sizes.gradient
    if step.strategy.shards_weights:
        share = min(share, step.sharding.sub_group_size)
    copies = gradient + (4.0 if gradient < 4 else 0.0)
    return share * max(copies, 8.0 if step.optimizer.foreach else 4.0)
