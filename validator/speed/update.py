"""The optimizer's update of what trains, on the device. Seconds of a step."""

from __future__ import annotations

from validator.memory.optimizer import FOREACH, partitions, state_bytes
from validator.memory.run import Run
from validator.memory.trained import Matrix, trained_matrices

from .rates import Rates

# A foreach step reads and writes once for each of its operations (torch, optim/adamw.py, _multi_tensor_adamw): what
# stays the same from one step to the next of fms-acceleration and of peft is this many times what one kernel moves.
_FOREACH = 3.5
# Newton-Schulz iterations of Muon, each three products of a matrix with its square; GaLore's and APOLLO's projections
# there and back.
_ITERATIONS, _PROJECTIONS = 5, 2


def update(run: Run, rates: Rates) -> float:
    """Gradients measured and clipped, states and weights read and written, on this device's share."""
    if run.sharding.offload_optimizer:
        return 0.0
    sizes, trained = run.sizes, run.trained
    clipped = 4.0 * sizes.gradient * trained
    weights = 2 * sizes.master + 2 * (sizes.adapter if run.adapts else sizes.trained)
    passes = _FOREACH if run.work.optimizer in FOREACH else 1.0
    moved = clipped + passes * (weights * trained + 2 * state_bytes(run))
    return (moved / rates.bandwidth + _products(run, rates)) / partitions(run)


def _products(run: Run, rates: Rates) -> float:
    """Of optimizers that multiply matrices."""
    name = run.work.optimizer
    if name == "muon":
        inside = (matrix for matrix in trained_matrices(run) if matrix.outputs != run.arch.vocab)
        return sum(_orthogonal(rates, matrix) for matrix in inside)
    if name.startswith(("galore", "apollo")):
        rank = run.work.optimizer_rank
        matrices = ((each, rates.product(each.inputs, each.outputs, rank, 4.0)) for each in trained_matrices(run))
        return sum(matrix.number * _PROJECTIONS * seconds for matrix, seconds in matrices)
    return 0.0


def _orthogonal(rates: Rates, matrix: Matrix) -> float:
    """Muon's iterations on matrices of one shape."""
    small, large = sorted((matrix.inputs, matrix.outputs))
    return matrix.number * _ITERATIONS * 3 * rates.product(large, small, small, 2.0)
