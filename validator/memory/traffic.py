"""What spreading a run over devices costs each of them: gathered parameters and communication buckets. Bytes."""

from __future__ import annotations

from .precision import element_bytes
from .shapes import blocks, embedding, head, parameters, trainable_parameters
from .states import base_weight_bytes, head_elements
from .workload import Architecture, Workload


def gathered(arch: Architecture, workload: Workload) -> float:
    """Whole parameters that a sharded run has on the device at its fullest moment."""
    if workload.sharding.stage == 3:
        return _gathered_zero3(arch, workload)
    return _gathered_fsdp(arch, workload) if workload.sharding.fsdp else 0.0


def _gathered_zero3(arch: Architecture, workload: Workload) -> float:
    """ZeRO-3 keeps what it will need again within the live and reuse limits. A layer is used once on the way forward and
    once on the way back, so half the limit is held when the loss is made, beside the output layer and the prefetch."""
    sharding = workload.sharding
    live = sharding.max_live_parameters / 2 + head_elements(arch) + sharding.prefetch_bucket
    total = parameters(arch)
    return min(1.0, live / total) * base_weight_bytes(arch, workload)


def _gathered_fsdp(arch: Architecture, workload: Workload) -> float:
    """FSDP holds the root unit (embedding, output layer) whole, and two layers: the one at work and the one prefetched."""
    sizes = element_bytes(workload)
    layers = max(block.elements for _, block in blocks(arch, workload.experts_fused))
    quantized = base_weight_bytes(arch, workload) / (sizes.base * parameters(arch)) if workload.quant_bits else 1.0
    return sizes.compute * (embedding(arch) + head(arch) + 2 * layers * quantized)


def buckets(arch: Architecture, workload: Workload) -> float:
    """Communication buffers. Plain data parallel keeps every gradient a second time in its buckets (PyTorch
    DistributedDataParallel without bucket views); ZeRO allocates whole reduce buckets, two if they overlap."""
    sharding = workload.sharding
    gradient = element_bytes(workload).gradient
    if sharding.stage == 0 or sharding.fsdp:
        plain = sharding.world > 1 and not sharding.fsdp and not sharding.engine
        return gradient * trainable_parameters(arch, workload) if plain else 0.0
    if sharding.stage < 3 and not sharding.contiguous_gradients:
        return 0.0
    return gradient * sharding.reduce_bucket * (2 if sharding.overlap and sharding.stage < 3 else 1)
