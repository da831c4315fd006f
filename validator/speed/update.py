"""The optimizer's update of what trains, on the device. Seconds of a step."""

from __future__ import annotations

from functools import partial

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
# GaLore decomposes every matrix once in this many steps (LLaMA-Factory's galore_update_interval); of rows times columns
# times the smaller of both it gets through so many in a second: four fifths of fine-tuning 7B (arXiv 2412.19820).
_INTERVAL, _DECOMPOSED = 200, 2.5e10


def update(run: Run, rates: Rates) -> float:
    """Gradients measured and clipped, states and weights read and written, on this device's share."""
    if run.sharding.offload_optimizer:
        return 0.0
    sizes, trained = run.sizes, _updated(run)
    clipped = 4.0 * sizes.gradient * trained
    weights = 2 * sizes.master + 2 * (sizes.adapter if run.adapts else sizes.trained)
    passes = _FOREACH if run.work.optimizer in FOREACH else 1.0
    moved = clipped + passes * (weights * trained + 2 * state_bytes(run))
    return (moved / rates.bandwidth + _products(run, rates)) / partitions(run)


def _updated(run: Run) -> float:
    """Parameters of one step's update; BAdam's are those of one block of layers (arXiv 2404.02827)."""
    return min(run.trained, run.largest_layer) if run.work.optimizer == "badam" else run.trained


def _products(run: Run, rates: Rates) -> float:
    """Of optimizers that multiply matrices."""
    name = run.work.optimizer
    if not name.startswith(("muon", "galore", "apollo")):
        return 0.0
    inside = [matrix for matrix in trained_matrices(run) if matrix.outputs != run.arch.vocab]
    each = _orthogonal if name == "muon" else partial(_projected, run)
    return sum(matrix.number * each(rates, matrix) for matrix in inside)


def _orthogonal(rates: Rates, matrix: Matrix) -> float:
    """Muon's iterations on one matrix."""
    small, large = sorted((matrix.inputs, matrix.outputs))
    return _ITERATIONS * 3 * rates.product(large, small, small, 2.0)


def _projected(run: Run, rates: Rates, matrix: Matrix) -> float:
    """A gradient on its way to a space of few dimensions and back, and GaLore's share of finding that."""
    moved = _PROJECTIONS * rates.product(matrix.inputs, matrix.outputs, run.work.optimizer_rank, 4.0)
    if run.work.optimizer == "apollo":  # whose projections are random
        return moved
    decomposed = float(matrix.elements) * min(matrix.inputs, matrix.outputs) / _DECOMPOSED
    return moved + decomposed / _INTERVAL
