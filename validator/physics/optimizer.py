"""Memory of the optimizer: its states for the trained tensors of the whole model and on one device, and the workspace
of its step. Bytes."""

from __future__ import annotations

from functools import lru_cache

from validator.physics.training_step import (
    TrainingStep,
    largest_trained_tensor,
    trained_bytes,
    trained_matrices,
)
from validator.physics.workload import DDP, EIGHT_BIT_SIZE


def _low_rank_state_bytes(step: TrainingStep, moment: float) -> float:
    """GaLore (arXiv 2403.03507), APOLLO (2412.05270): moments live in a rank-r space of the layers' linear modules,
    beside the projection itself; everything else keeps ordinary moments."""
    projected, inside = 0.0, 0
    for count, layer in () if step.trains_adapter else step.backward_layers:
        for linear in layer.linears:
            small, large = sorted((linear.inputs, linear.outputs))
            rank = min(step.work.optimizer_rank, small)
            projected += count * linear.number * rank * (2 * large * moment + small * moment)
            inside += count * linear.elements
    return projected + 2 * moment * (step.trained_elements - inside)


def _adafactor_state_bytes(step: TrainingStep) -> float:
    """Adafactor (arXiv 1804.04235): one fp32 row and one column of second moments for each matrix."""
    matrices = trained_matrices(step)
    vectors = step.trained_elements - sum(matrix.elements * matrix.number for matrix in matrices)
    return 4.0 * (sum((matrix.outputs + matrix.inputs) * matrix.number for matrix in matrices) + vectors)


def _muon_state_bytes(step: TrainingStep, moment: float) -> float:
    """Muon keeps one moment for hidden matrices; embeddings, output layer and vectors keep AdamW's two."""
    hidden = (matrix for matrix in trained_matrices(step) if matrix.outputs != step.arch.vocab)
    return moment * (2 * step.trained_elements - sum(matrix.elements * matrix.number for matrix in hidden))


def _elements_with_fp32_moments(step: TrainingStep) -> int:
    """Elements of embeddings, whose moments stay in fp32 beside bitsandbytes' 8-bit ones (transformers' Trainer
    registers the exception; an engine's partitions hide the embedding from it)."""
    return step.embedding_elements if step.trains_embedding and step.strategy == DDP else 0


@lru_cache(maxsize=64)
def optimizer_state_bytes(step: TrainingStep) -> float:
    """Optimizer states of the whole model, without the engine's master weights."""
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
    """Moments and the engine's master weights of the whole model."""
    return optimizer_state_bytes(step) + step.sizes.master * step.trained_elements


def optimizer_partitions(step: TrainingStep) -> int:
    """Over how many devices the optimizer states are spread."""
    return step.sharding.world_size if step.strategy.shards_optimizer_states else 1


def paged_state_bytes(step: TrainingStep) -> float:
    """Moments in memory that the driver moves to the host under pressure."""
    return optimizer_state_bytes(step) if step.work.optimizer.startswith("paged_") else 0.0


def optimizer_states_on_device(step: TrainingStep) -> float:
    """Moments and master weights on one device. Paged moments are counted on the host; master weights are never
    paged."""
    if step.sharding.offload_optimizer:
        return 0.0
    return (states_and_master_bytes(step) - paged_state_bytes(step)) / optimizer_partitions(step)


def optimizer_workspace(step: TrainingStep) -> float:
    """A foreach step holds the root of every second moment at once; Adafactor holds the update and its square for the
    largest matrix, and fp32 copies of gradient and parameter when these are half precision. Fused steps need none."""
    if step.sharding.offload_optimizer:
        return 0.0
    if step.strategy.deepspeed:
        return _deepspeed_workspace(step)
    if step.optimizer.foreach:
        return trained_bytes(step, step.sizes.moment) / optimizer_partitions(step)
    copies_half = step.optimizer.states == "factored" and step.sizes.gradient != 4
    return 4.0 * (4 if copies_half else step.optimizer.largest_copies) * largest_trained_tensor(step)


def _deepspeed_workspace(step: TrainingStep) -> float:
    """A ZeRO engine flattens this device's gradients, copies them to fp32 and updates; stage 3 one sub-group at a
    time."""
    share, gradient = step.trained_elements / optimizer_partitions(step), step.sizes.gradient
    if step.strategy.shards_weights:
        share = min(share, step.sharding.sub_group_size)
    copying = gradient + (4.0 if gradient < 4 else 0.0)
    return share * max(copying, 8.0 if step.optimizer.foreach else 4.0)
