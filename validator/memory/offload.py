"""Model states in a node's main memory. Bytes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from .optimizer import paged_states, partitions, state_bytes
from .run import Run
from .terms import Host
from .weights import spreadable, whole_reference

TENSOR_ROUNDING = 4 / 3  # a size lies anywhere between two powers of two: what rounding it up costs on average


def pinned(size: float) -> float:
    """Bytes of one page-locked tensor: PyTorch's host allocator rounds up to a power of two and keeps what is freed
    (ATen/core/CachingHostAllocator.h)."""
    return float(1 << (max(int(size), 1) - 1).bit_length())


def _page_locked(run: Run, size: float) -> float:
    return pinned(size) if run.sharding.pin_memory else size


def _partition(run: Run) -> float:
    """Trained elements of one process."""
    return run.trained / run.sharding.world


def _grouped(run: Run) -> float:
    """fp32 gradients of a partition: one tensor for each sub-group under ZeRO-3, else one."""
    elements = _partition(run)
    group = run.sharding.sub_group if run.sharding.zero == 3 else elements
    whole, rest = divmod(elements, max(group, 1))
    return whole * _page_locked(run, 4 * group) + (_page_locked(run, 4 * rest) if rest >= 1 else 0.0)


def offloaded_states(run: Run) -> Mapping[Host, float]:
    """What an offloaded optimizer keeps for this node's partitions (deepspeed, runtime/zero/stage3.py and
    stage_1_and_2.py): fp32 master weights and moments, page-locked fp32 gradients, and one more copy in half precision:
    of the gradients that arrive (stage 3), or of the weights on their way back and of accumulated gradients. FSDP moves
    moments and gradients as they are."""
    sharding, devices, partition = run.sharding, run.sharding.devices_per_node, _partition(run)
    if not sharding.offload_optimizer:
        return {Host.MOMENTS: devices * paged_states(run) / partitions(run)}
    moments, half = devices * state_bytes(run) / partitions(run), run.sizes.gradient * partition
    if sharding.fsdp:
        return {Host.MOMENTS: moments, Host.GRADIENTS: devices * run.sizes.gradient * partition}
    stage3 = sharding.zero == 3
    master = 4.0 * partition if stage3 else _page_locked(run, 4 * partition)
    copies = 1 if stage3 or run.work.accumulation == 1 else 2
    return {
        Host.MOMENTS: moments,
        Host.MASTER: devices * master,
        Host.GRADIENTS: devices * _grouped(run),
        Host.HALF_COPIES: devices * copies * _page_locked(run, half),
    }


def _fsdp_shards(run: Run) -> float:
    """Page-locked shards of the weights on this node. FSDP1 makes one tensor of each layer and one of the rest, and a
    gradient of the same size beside each, whether or not it trains (torch, distributed/fsdp/_flat_param.py,
    init_flat_param_attributes); those of weights that train are counted with the gradients. FSDP2 makes a tensor of
    each parameter and no gradient before there is one (_fully_shard/_fsdp_param.py)."""
    sharding, whole = run.sharding, spreadable(run)
    if sharding.raised:
        return whole * TENSOR_ROUNDING / sharding.nodes
    rest = run.tables * (run.sizes.trained if run.work.method == "full" else run.sizes.base)
    layer = (whole - rest) / run.arch.layers
    shards = run.arch.layers * pinned(layer / sharding.world) + pinned(rest / sharding.world)
    return sharding.devices_per_node * shards * (2 if run.adapts else 1)


def waiting_weights(run: Run) -> float:
    """Partitions of the weights as soon as the checkpoint is loaded. FSDP page-locks its shards in the first step."""
    moved = run.sharding.fsdp and run.sharding.offload_parameters
    return spreadable(run) / run.sharding.nodes if moved else offloaded_weights(run)


@lru_cache(maxsize=64)
def offloaded_weights(run: Run) -> float:
    """Partitions of the weights. Under ZeRO trained ones lie in one flat buffer, always page-locked, and page-locked
    partitions made before it stay cached; frozen ones stay as they were made, tensor by tensor."""
    sharding = run.sharding
    if not sharding.offload_parameters:
        return 0.0
    if sharding.fsdp:
        return _fsdp_shards(run)
    spread = spreadable(run) / sharding.nodes * (TENSOR_ROUNDING if sharding.pin_memory else 1.0)
    if run.work.method != "full":
        return spread
    flat = sharding.devices_per_node * pinned(run.sizes.trained * _partition(run))
    return flat + (spread if sharding.pin_memory else 0.0)


def offloaded_reference(run: Run) -> float:
    """Frozen copies of the model follow the parameters."""
    if not run.sharding.offload_parameters:
        return 0.0
    return whole_reference(run) / run.sharding.nodes * (TENSOR_ROUNDING if run.sharding.pin_memory else 1.0)
