"""Disk usage of a run, in bytes."""

from __future__ import annotations

from collections.abc import Mapping

from .optimizer import whole_states
from .run import Run, run_of
from .terms import Disk
from .trained import trained_bytes
from .workload import Architecture, Workload


def disk(
    arch: Architecture, workload: Workload, kept: int, at_once: int, *, save_optimizer: bool
) -> Mapping[Disk, float]:
    """Most bytes at once by term: the base weights read, weights and optimizer states of checkpoints, the final
    weights, tokenized data.

    A run that removes old checkpoints has `at_once` of them, one more than it has `kept`, while it writes one; at the
    end it has those kept, and the final weights, which is never more. Where none is removed, both numbers are equal.
    A ZeRO engine writes its own states (master weights and moments), below stage 3 with a copy of the trained weights
    beside them. FSDP writes that copy, too (accelerate/utils/fsdp_utils.py, save_fsdp_model), where it saves whole
    states; where it saves them in pieces it writes no other."""
    run = run_of(arch, workload)
    saved = trained_bytes(run, run.sizes.adapter) if run.adapts else _saved_weights(run)
    states = whole_states(run) if save_optimizer else 0.0
    if save_optimizer and (run.sharding.fsdp or (run.sharding.engine and run.sharding.zero < 3)):
        states += saved
    return {
        Disk.BASE: workload.base_bytes * run.parameters,
        Disk.WEIGHTS: saved * (kept + 1),
        Disk.OPTIMIZER: states * at_once,
        Disk.DATA: 12.0 * workload.dataset_tokens,
    }


def _saved_weights(run: Run) -> float:
    return run.sizes.trained * run.trained + run.sizes.base * (run.parameters - run.trained)
