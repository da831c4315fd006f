"""Memory of one node: loading, offloaded states, gathered weights, processes, data. Bytes."""

from __future__ import annotations

from .estimate import Estimate
from .precision import element_bytes
from .shapes import parameters, trainable_parameters
from .states import base_weight_bytes, optimizer_whole, weights_sharded
from .workload import Architecture, Workload

GIB = float(1 << 30)
PROCESS_GIB = 3.0  # interpreter, libraries and the device runtime of one training process
WORKER_GIB = 0.7  # a data-loader worker: interpreter and libraries, no device runtime


def _processes(workload: Workload) -> float:
    each = PROCESS_GIB + workload.loader_workers * WORKER_GIB
    return workload.sharding.devices_per_node * each * GIB


def _loading(arch: Architecture, workload: Workload) -> float:
    """Checkpoint bytes while loading: mapped once for all processes of a node, or materialized by each of them."""
    whole = workload.base_bytes * parameters(arch)
    return whole if workload.low_memory_load else whole * workload.sharding.devices_per_node


def _offloaded_optimizer(arch: Architecture, workload: Workload) -> float:
    """Master weights, moments and fp32 gradients of this node's share."""
    if not workload.sharding.offload_optimizer:
        return optimizer_whole(arch, workload) if workload.optimizer.startswith("paged_") else 0.0
    trained = trainable_parameters(arch, workload)
    return (optimizer_whole(arch, workload) + 4.0 * trained) / workload.sharding.nodes


def _offloaded_parameters(arch: Architecture, workload: Workload) -> float:
    if not workload.sharding.offload_parameters:
        return 0.0
    return base_weight_bytes(arch, workload) / workload.sharding.nodes


def _saving(arch: Architecture, workload: Workload) -> float:
    """Half-precision weights gathered on the first process for a save."""
    if not (workload.sharding.gather_on_save and weights_sharded(workload)) or workload.method in ("lora", "oft"):
        return 0.0
    return element_bytes(workload).compute * parameters(arch)


def host_memory(arch: Architecture, workload: Workload) -> Estimate:
    """Peak memory of one node, by term."""
    standing = {
        "processes": _processes(workload),
        "optimizer": _offloaded_optimizer(arch, workload),
        "parameters": _offloaded_parameters(arch, workload),
        "data": 16.0 * workload.dataset_tokens,
    }
    passing = max(("loading", _loading(arch, workload)), ("saving", _saving(arch, workload)), key=lambda pair: pair[1])
    terms = {name: value for name, value in [*standing.items(), passing] if value}
    total = sum(terms.values())
    pinned = workload.sharding.pin_memory * (terms.get("optimizer", 0.0) + terms.get("parameters", 0.0))
    return Estimate(terms, total - terms.get("loading", 0.0), total + 0.1 * pinned, total + 0.5 * pinned)
