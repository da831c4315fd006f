"""What a run leaves on disk. Bytes."""

from __future__ import annotations

from .optimizer import trained_bytes
from .precision import element_bytes
from .shapes import parameters, trainable_parameters
from .states import optimizer_whole
from .workload import Architecture, Workload


def disk(arch: Architecture, workload: Workload, checkpoints_kept: int, save_optimizer: bool) -> dict[str, float]:
    """Bytes by term: the base weights read, each kept checkpoint and the final weights, optimizer states, tokenized
    data.

    A ZeRO engine writes its own states (master weights and moments), below stage 3 with a copy of the trained weights
    beside them."""
    adapter = trained_bytes(arch, workload, element_bytes(workload).adapter)
    saved = adapter if workload.method in ("lora", "oft") else _saved_weights(arch, workload)
    states = optimizer_whole(arch, workload) if save_optimizer else 0.0
    if save_optimizer and workload.sharding.engine and workload.sharding.zero < 3:
        states += saved
    return {
        "base": workload.base_bytes * parameters(arch),
        "weights": saved * (checkpoints_kept + 1),
        "optimizer": states * checkpoints_kept,
        "data": 12.0 * workload.dataset_tokens,
    }


def _saved_weights(arch: Architecture, workload: Workload) -> float:
    sizes, trained = element_bytes(workload), trainable_parameters(arch, workload)
    return sizes.trained * trained + sizes.base * (parameters(arch) - trained)
