"""What spreading a run over devices costs each of them: gathered parameters and communication buckets. Bytes."""

from __future__ import annotations

from typing import Literal

from .optimizer import largest_tensor
from .precision import element_bytes
from .shapes import Block, blocks, embedding, head, parameters, trainable_parameters
from .states import base_weight_bytes, head_elements
from .workload import Architecture, Workload

Where = Literal["loss", "last layer", "first layer", "embedding"]


def gathered(arch: Architecture, workload: Workload, where: Where) -> float:
    """Whole parameters that a sharded run has on the device at this point of the step."""
    if workload.sharding.zero == 3:
        return _gathered_zero3(arch, workload, where)
    return _gathered_fsdp(arch, workload) if workload.sharding.fsdp else 0.0


def _gathered_zero3(arch: Architecture, workload: Workload, where: Where) -> float:
    """ZeRO-3 gathers the module at work and a prefetch bucket, and keeps what it will use again within the reuse
    distance: at the loss that is a third of it, since a checkpointed layer is used once going forward and twice
    coming back, less the output layer, which is passed twice
    (deepspeed/runtime/zero/partitioned_param_coordinator.py)."""
    sharding, whole = workload.sharding, base_weight_bytes(arch, workload)
    tables = embedding(arch) + head(arch)
    per_table = element_bytes(workload).trained if workload.method == "full" else element_bytes(workload).base
    per_layer = (whole - per_table * tables) / (parameters(arch) - tables)
    reuse = min(sharding.max_reuse_distance, sharding.max_live_parameters)
    kept = max(0.0, (reuse - 2 * head_elements(arch)) / 3)
    layer = _largest(arch, workload).elements
    table, inside = {
        "loss": (head_elements(arch), kept),
        "last layer": (0, max(layer, reuse / 3)),
        "first layer": (0, layer),
        "embedding": (embedding(arch), 0),
    }[where]
    return min(whole, per_table * table + per_layer * (inside + sharding.prefetch_bucket))


def side_pools(arch: Architecture, workload: Workload) -> float:
    """What the allocator keeps for ZeRO-3's second streams beside what is live at the peak. With overlapping
    communication parameters are gathered on a stream of their own (deepspeed, parameter_offload.py), and the
    allocator keeps a pool for each stream: both tables and the layers within the reuse distance, at their largest.
    Gradients of the tables on their way to the host take blocks of their own, twice: as made and as reduced.

    hiyouga/LLaMA-Factory#5977 and #7282 hold 11 and 25 GiB where 2 to 6 are live."""
    sharding = workload.sharding
    if sharding.zero != 3 or not sharding.overlap:
        return 0.0
    sizes, tables = element_bytes(workload), embedding(arch) + head(arch)
    each = sizes.trained if workload.method == "full" else sizes.base
    inside = min(sharding.max_reuse_distance, sharding.max_live_parameters, parameters(arch) - tables)
    leaving = 2 * sizes.gradient * tables if workload.method == "full" and sharding.offload_optimizer else 0.0
    return each * (tables + inside) - _gathered_zero3(arch, workload, "loss") + leaving


def _gathered_fsdp(arch: Architecture, workload: Workload) -> float:
    """FSDP holds the root unit (embedding, output layer) whole, and two layers: the one at work and the one
    prefetched."""
    sizes = element_bytes(workload)
    if workload.sharding.stage == 2:
        return sizes.compute * parameters(arch)
    quantized = base_weight_bytes(arch, workload) / (sizes.base * parameters(arch)) if workload.quant_bits else 1.0
    return sizes.compute * (embedding(arch) + head(arch) + 2 * _largest(arch, workload).elements * quantized)


def _largest(arch: Architecture, workload: Workload) -> Block:
    return max((block for _, block in blocks(arch, workload.experts_fused)), key=lambda block: block.elements)


def buckets(arch: Architecture, workload: Workload) -> float:
    """Communication buffers of the backward pass. Plain data parallel keeps every gradient a second time in its buckets
    (PyTorch DistributedDataParallel without bucket views); ZeRO allocates whole reduce buckets, two if they overlap,
    and beside them one gradient of the largest tensor when gradients leave for the host."""
    sharding, gradient = workload.sharding, element_bytes(workload).gradient
    trained = trainable_parameters(arch, workload)
    if sharding.fsdp or (sharding.world == 1 and not sharding.engine):
        return 0.0
    if not sharding.engine:
        return gradient * trained
    if sharding.zero == 0:
        return gradient * min(sharding.reduce_bucket, trained)
    doubled = 2 if sharding.overlap and sharding.zero < 3 else 1
    whole = gradient * sharding.reduce_bucket * doubled if sharding.contiguous_gradients else 0.0
    if sharding.offload_optimizer and sharding.zero < 3:
        whole += gradient * largest_tensor(arch, workload)
    return whole
