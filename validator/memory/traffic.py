"""What spreading a run over devices costs each of them: gathered parameters and communication buckets. Bytes."""

from __future__ import annotations

from typing import Literal

from .run import Run
from .tower import elements
from .trained import largest_tensor
from .weights import spreadable

Where = Literal["loss", "last layer", "first layer", "embedding"]


def gathered(run: Run, where: Where) -> float:
    """Whole parameters that a sharded run has on the device at this point of the step."""
    if run.sharding.zero == 3:
        return _gathered_zero3(run, where)
    return _gathered_fsdp(run) if run.sharding.fsdp else 0.0


def _table_bytes(run: Run) -> float:
    """Bytes per element of embedding and output layer."""
    return run.sizes.trained if run.work.method == "full" else run.sizes.base


def _per_layer(run: Run) -> float:
    """Bytes per element of the layers that are gathered."""
    return (spreadable(run) - _table_bytes(run) * run.tables) / (run.parameters - run.tables)


def _gathered_zero3(run: Run, where: Where) -> float:
    """ZeRO-3 gathers the module at work and a prefetch bucket, and keeps what it will use again within the reuse
    distance: at the loss that is a third of it, since a checkpointed layer is used once going forward and twice
    coming back, less the output layer, which is passed twice
    (deepspeed/runtime/zero/partitioned_param_coordinator.py)."""
    sharding, whole, per_table = run.sharding, spreadable(run), _table_bytes(run)
    per_layer = _per_layer(run)
    reuse = min(sharding.max_reuse_distance, sharding.max_live_parameters)
    table, inside = {
        "loss": (run.head, max(0.0, (reuse - 2 * run.head) / 3)),
        "last layer": (0, max(run.largest_layer, reuse / 3)),
        "first layer": (0, run.largest_layer),
        "embedding": (run.embedding, 0),
    }[where]
    return min(whole, per_table * table + per_layer * (inside + sharding.prefetch_bucket))


def side_pools(run: Run) -> float:
    """What the allocator keeps for ZeRO-3's second streams beside what is live at the peak. With overlapping
    communication parameters are gathered on a stream of their own (deepspeed, parameter_offload.py), and the
    allocator keeps a pool for each stream: both tables and the layers within the reuse distance, at their largest.
    Gradients of the tables on their way to the host take blocks of their own, twice: as made and as reduced.

    hiyouga/LLaMA-Factory#5977 and #7282 hold 11 and 25 GiB where 2 to 6 are live."""
    sharding = run.sharding
    if sharding.zero != 3 or not sharding.overlap:
        return 0.0
    inside = min(sharding.max_reuse_distance, sharding.max_live_parameters, run.parameters - run.tables)
    leaves = run.work.method == "full" and sharding.offload_optimizer
    leaving = 2 * run.sizes.gradient * run.tables if leaves else 0.0
    return _table_bytes(run) * (run.tables + inside) - _gathered_zero3(run, "loss") + leaving


def _gathered_fsdp(run: Run) -> float:
    """FSDP holds the root unit (embedding, output layer, towers) whole, and two layers: the one at work and the one
    prefetched."""
    sizes = run.sizes
    if run.sharding.stage == 2:
        return sizes.compute * run.parameters
    quantized = _per_layer(run) / run.work.base_bytes if run.work.quant_bits else 1.0
    towers = sum(elements(tower) for tower in run.arch.towers)
    return sizes.compute * (run.tables + (towers + 2 * run.largest_layer) * quantized)


def buckets(run: Run) -> float:
    """Communication buffers of the backward pass. Plain data parallel keeps every gradient a second time in its buckets
    (PyTorch DistributedDataParallel without bucket views); ZeRO allocates whole reduce buckets, two if they overlap,
    and beside them one gradient of the largest tensor when gradients leave for the host."""
    sharding, gradient = run.sharding, run.sizes.gradient
    if sharding.fsdp or (sharding.world == 1 and not sharding.engine):
        return 0.0
    if not sharding.engine:
        return gradient * run.trained
    if sharding.zero == 0:
        return gradient * min(sharding.reduce_bucket, run.trained)
    doubled = 2 if sharding.overlap and sharding.zero < 3 else 1
    whole = gradient * sharding.reduce_bucket * doubled if sharding.contiguous_gradients else 0.0
    if sharding.offload_optimizer and sharding.zero < 3:
        whole += gradient * largest_tensor(run)
    return whole
