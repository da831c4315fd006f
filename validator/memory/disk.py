"""What a run leaves on disk. Bytes."""

from __future__ import annotations

from collections.abc import Mapping

from .optimizer import whole_states
from .run import Run, run_of
from .terms import Disk
from .trained import trained_bytes
from .workload import Architecture, Workload


def disk(arch: Architecture, workload: Workload, checkpoints_kept: int, save_optimizer: bool) -> Mapping[Disk, float]:
    """Bytes by term: the base weights read, each kept checkpoint and the final weights, optimizer states, tokenized
    data.

    A ZeRO engine writes its own states (master weights and moments), below stage 3 with a copy of the trained weights
    beside them."""
    run = run_of(arch, workload)
    saved = trained_bytes(run, run.sizes.adapter) if run.adapts else _saved_weights(run)
    states = whole_states(run) if save_optimizer else 0.0
    if save_optimizer and run.sharding.engine and run.sharding.zero < 3:
        states += saved
    return {
        Disk.BASE: workload.base_bytes * run.parameters,
        Disk.WEIGHTS: saved * (checkpoints_kept + 1),
        Disk.OPTIMIZER: states * checkpoints_kept,
        Disk.DATA: 12.0 * workload.dataset_tokens,
    }


def _saved_weights(run: Run) -> float:
    return run.sizes.trained * run.trained + run.sizes.base * (run.parameters - run.trained)
