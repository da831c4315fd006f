"""Memory of one node: processes, loading, offloaded states, gathered weights, data. Bytes."""

from __future__ import annotations

from .estimate import Estimate
from .optimizer import partitions, state_bytes
from .precision import element_bytes
from .shapes import embedding, parameters, trainable_parameters
from .states import base_weight_bytes, reference_whole, weights_sharded
from .workload import Architecture, Workload

GIB = float(1 << 30)
PROCESS_GIB = 3.0  # interpreter, libraries and the device runtime of one training process
HEAVIER_PROCESSES = 0.5  # how much more of that a process may take
WORKER_GIB = 0.7  # a data-loader worker: interpreter and libraries, no device runtime
TOKEN_BYTES = 16.0  # a tokenized sample keeps ids and labels, 8 bytes each where the loader builds a batch
TENSOR_ROUNDING = 4 / 3  # a size lies anywhere between two powers of two: what rounding it up costs on average

Terms = dict[str, float]


def pinned(size: float) -> float:
    """Bytes of one page-locked tensor: PyTorch's host allocator rounds up to a power of two and keeps what is freed
    (ATen/core/CachingHostAllocator.h)."""
    return float(1 << (max(int(size), 1) - 1).bit_length())


def _share(arch: Architecture, workload: Workload) -> float:
    """Trained elements of one process's partition."""
    return trainable_parameters(arch, workload) / workload.sharding.world


def _page_locked(size: float, workload: Workload) -> float:
    return pinned(size) if workload.sharding.pin_memory else size


def _grouped(elements: float, workload: Workload) -> float:
    """fp32 gradients of a partition: one tensor for each sub-group under ZeRO-3, else one."""
    group = workload.sharding.sub_group if workload.sharding.zero == 3 else elements
    whole, rest = divmod(elements, max(group, 1))
    return whole * _page_locked(4 * group, workload) + (_page_locked(4 * rest, workload) if rest >= 1 else 0.0)


def optimizer_states(arch: Architecture, workload: Workload) -> Terms:
    """What an offloaded optimizer keeps for this node's partitions (deepspeed, runtime/zero/stage3.py and
    stage_1_and_2.py): fp32 master weights and moments, page-locked fp32 gradients, and one more copy in half precision:
    of the gradients that arrive (stage 3), or of the weights on their way back and of accumulated gradients. FSDP moves
    moments and gradients as they are."""
    devices = workload.sharding.devices_per_node
    moments = devices * state_bytes(arch, workload) / partitions(workload)
    if not workload.sharding.offload_optimizer:
        paged = workload.optimizer.startswith("paged_")
        return {"moments": moments} if paged else {}
    share, sizes = _share(arch, workload), element_bytes(workload)
    if workload.sharding.fsdp:
        return {"moments": moments, "gradients": devices * sizes.gradient * share}
    stage3 = workload.sharding.zero == 3
    master = 4.0 * share if stage3 else _page_locked(4 * share, workload)
    copies = 1 if stage3 or workload.accumulation == 1 else 2
    return {
        "moments": moments,
        "master": devices * master,
        "gradients": devices * _grouped(share, workload),
        "half_copies": devices * copies * _page_locked(sizes.gradient * share, workload),
    }


def offloaded_weights(arch: Architecture, workload: Workload) -> float:
    """Partitions of the weights. Trained ones lie in one flat buffer, always page-locked, and page-locked partitions
    made before it stay cached; frozen ones stay as they were made, tensor by tensor."""
    sharding = workload.sharding
    if not sharding.offload_parameters:
        return 0.0
    sizes, whole = element_bytes(workload), base_weight_bytes(arch, workload)
    partitions = whole / sharding.nodes * (TENSOR_ROUNDING if sharding.pin_memory else 1.0)
    if workload.method != "full":
        return partitions
    flat = sharding.devices_per_node * pinned(sizes.trained * _share(arch, workload))
    return flat + (partitions if sharding.pin_memory else 0.0)


def _offloaded_reference(arch: Architecture, workload: Workload) -> float:
    sharding = workload.sharding
    rounding = TENSOR_ROUNDING if sharding.pin_memory else 1.0
    return reference_whole(arch, workload) / sharding.nodes * rounding if sharding.offload_parameters else 0.0


def _processes(workload: Workload) -> float:
    each = PROCESS_GIB + workload.loader_workers * WORKER_GIB
    return workload.sharding.devices_per_node * each * GIB


def checkpoint_in_memory(arch: Architecture, workload: Workload) -> float:
    """Checkpoint bytes while loading: mapped once for all processes of a node, or materialized by each of them."""
    whole = workload.base_bytes * parameters(arch)
    return whole if workload.low_memory_load else whole * workload.sharding.devices_per_node


def _first_process(arch: Architecture, workload: Workload) -> Terms:
    """FSDP that spreads the weights as they are read: the first process holds the whole model, quantized if so asked,
    until it has handed out the shards."""
    first = workload.sharding.fsdp and workload.sharding.sharded_load
    return {"whole_model": base_weight_bytes(arch, workload)} if first else {}


def _saving(arch: Architecture, workload: Workload) -> float:
    """Weights gathered on the first process for a save."""
    if not (workload.sharding.gather_on_save and weights_sharded(workload)) or workload.method in ("lora", "oft"):
        return 0.0
    return element_bytes(workload).compute * parameters(arch)


def _checkpoints(arch: Architecture, workload: Workload) -> float:
    """Activation checkpoints moved to the host, of every device."""
    if workload.checkpointing != "offloaded":
        return 0.0
    tokens = workload.micro_batch * workload.sequences_per_sample * workload.length
    each = element_bytes(workload).residual * tokens * arch.hidden * arch.layers
    return workload.sharding.devices_per_node * each


def _training(arch: Architecture, workload: Workload) -> Terms:
    return {
        **optimizer_states(arch, workload),
        "parameters": offloaded_weights(arch, workload),
        "reference": _offloaded_reference(arch, workload),
        "checkpoints": _checkpoints(arch, workload),
        "largest_gradient": 2.0 * embedding(arch) if workload.sharding.offload_optimizer else 0.0,
        "data": TOKEN_BYTES * workload.dataset_tokens,
    }


def host_memory(arch: Architecture, workload: Workload) -> Estimate:
    """Peak memory of one node: while loading, training or saving. Bytes by term.

    A mapped checkpoint file is page cache, which the kernel takes back when it must: it counts in `high` only, which
    also allows for the buffers' temporary second copies and for heavier processes."""
    standing, training = {"processes": _processes(workload)}, _training(arch, workload)
    checkpoint, weights = checkpoint_in_memory(arch, workload), {"parameters": training["parameters"]}
    moments: dict[str, Terms] = {
        "loading": {
            **weights,
            "loading": 0.0 if workload.low_memory_load else checkpoint,
            **_first_process(arch, workload),
        },
        "training": training,
        "saving": {**training, "saving": _saving(arch, workload)},
    }
    moment, terms = max(moments.items(), key=lambda pair: sum(pair[1].values()))
    terms = {name: value for name, value in {**standing, **terms}.items() if value}
    total = sum(terms.values())
    heavier = standing["processes"] * HEAVIER_PROCESSES
    cached = checkpoint + weights["parameters"] + standing["processes"]
    return Estimate(terms, 0.93 * total, total, max(1.12 * total, cached) + heavier, moment)
