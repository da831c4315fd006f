"""Seconds of a step that devices wait for each other's bytes: all-reduce, all-gather and reduce-scatter, less what
computation hides.

Bytes are those that the installed software moves, not those of the papers: DeepSpeed reduces the gradients of stages
1 and 2 in whole all-reduces (runtime/zero/stage_1_and_2.py, allreduce_bucket), and stage 2 does so after every micro
batch; DDP and FSDP spare all micro batches but the last (transformers, trainer.py; accelerate, no_sync)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import NamedTuple

from validator.physics.estimate import TimeTerm
from validator.physics.micro_batch import MicroBatchCosts
from validator.physics.rates import DeviceRates
from validator.physics.training_step import TrainingStep, forward_passes, trained_bytes
from validator.physics.weights import base_weight_bytes, reference_weight_bytes
from validator.physics.workload import Sharding

# Seconds to start a collective, and of each hop in its ring: small ones take 38 to 42 microseconds among 8 devices of a
# node and 38 to 40 among 16 of two (NVIDIA/nccl#1530, #949).
_START_SECONDS, _HOP_SECONDS = 25e-6, 2e-6
# Of a main memory's rate, what traffic between devices without an own link reaches, all devices together: 8 RTX 5090 at
# 28 GB/s each over 614 GB/s (NVIDIA/nccl#1639).
_SHARE_THROUGH_HOST_MEMORY = 0.365


class Collective(NamedTuple):
    """`calls` collective operations that carry tensors of `size` bytes in all. Every byte goes round the ring `rounds`
    times: once in an all-gather or a reduce-scatter, twice in an all-reduce."""

    size: float
    rounds: int
    calls: float


def slowest_link(device: DeviceRates, sharding: Sharding) -> tuple[TimeTerm, float]:
    """Return the term of the link that a ring through all devices waits for, and its bytes a second. Each link carries
    all gathered bytes but the last hop's share; so does each node's network, which its devices share. Devices without
    links of their own share main memory."""
    link = device.link
    if not device.nvlink_switch:
        link = min(link, _SHARE_THROUGH_HOST_MEMORY * device.host_bandwidth / sharding.devices_per_node)
    if sharding.nodes > 1 and 0 < device.network < link:
        return TimeTerm.NETWORK, device.network
    return TimeTerm.COMMUNICATION, link


def collective_seconds(collective: Collective, device: DeviceRates, sharding: Sharding) -> float:
    """Seconds of ring collectives over all devices (Patarasu and Yuan, Bandwidth optimal all-reduce algorithms,
    2009)."""
    world = sharding.world_size
    if world == 1:
        return 0.0
    travelled = collective.size * (world - 1) / world / slowest_link(device, sharding)[1]
    started = collective.calls * (_START_SECONDS + _HOP_SECONDS * (world - 1))
    return collective.rounds * travelled + started


# Traffic beside computation takes processors and memory bandwidth from it, and so costs this share of its own time even
# where it hides; and it hides behind no more than this share of the computation. Qwen2.5-14B on 8 A800 takes 10.32 s
# under ZeRO-2, which waits for all of 0.83 s, and 10.56 under ZeRO-3, with 1.09 s of traffic (ms-swift); on two
# RTX 3090 Llama-2-7B with LoRA takes 3.8 s longer by FSDP than by DDP at any micro batch (fsdp_qlora).
_INTERFERENCE_SHARE, _HIDDEN_SHARE = 0.7, 0.9
# DDP reduces buckets of this many bytes as they fill (torch, nn/parallel/distributed.py).
_DDP_BUCKET_BYTES = 25 * 2**20


class OverlapWindow(NamedTuple):
    """`times` equal parts of a step in which collectives overlap with `behind` seconds of computation."""

    times: int
    collectives: tuple[Collective, ...]
    behind: float = 0.0


def communication_seconds(
    step: TrainingStep, device: DeviceRates, micro_batch: MicroBatchCosts
) -> Mapping[TimeTerm, float]:
    """Seconds of a step in which the devices wait for each other's bytes: over the links of a node, or over the network
    between nodes if that is slower."""
    if step.sharding.world_size == 1:
        return {}
    term, _ = slowest_link(device, step.sharding)
    return {term: sum(_exposed_seconds(step, device, phase) for phase in _overlap_windows(step, micro_batch))}


def _exposed_seconds(step: TrainingStep, device: DeviceRates, window: OverlapWindow) -> float:
    collective = sum(collective_seconds(each, device, step.sharding) for each in window.collectives)
    return window.times * max(_INTERFERENCE_SHARE * collective, collective - _HIDDEN_SHARE * window.behind)


def _overlap_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    match step.strategy.gathers:
        case "module":
            return _zero3_windows(step, micro_batch)
        case "layer":
            return _fsdp_windows(step, micro_batch)
    return _zero_windows(step, micro_batch) if step.strategy.deepspeed else _ddp_windows(step, micro_batch)


def _backward_seconds(step: TrainingStep, micro_batch: MicroBatchCosts) -> float:
    """Seconds of the backward pass: twice the forward pass (once for frozen weights), and once more if layers are
    recomputed."""
    products = (1 if step.trains_adapter else 2) + (0 if step.checkpointing == "off" else 1)
    share = products * _backward_layer_share(step)
    return (micro_batch.forward + micro_batch.backward) * share / (1 + share)


def _backward_layer_share(step: TrainingStep) -> float:
    """The share of the layers that gradients visit."""
    whole = sum(number * layer.elements for number, layer in step.layers)
    return sum(number * layer.elements for number, layer in step.backward_layers) / whole


def _reduction(step: TrainingStep, size: float, calls: float) -> Collective:
    """Return the collective that reduces `size` bytes of gradients."""
    return Collective(size, 2 if step.strategy.collective == "all_reduce" else 1, calls)


def _ddp_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Return the windows of DDP: one all-reduce of all gradients a step, which overlaps with the last backward pass."""
    size = trained_bytes(step, step.sizes.gradient)
    yield OverlapWindow(
        1, (_reduction(step, size, ceil(size / _DDP_BUCKET_BYTES)),), _backward_seconds(step, micro_batch)
    )


def _zero_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Return the windows of ZeRO stages 0 to 2: an all-reduce of gradients, which overlaps with the backward pass under
    overlap_comm, then an all-gather of the updated weights."""
    sharding, strategy = step.sharding, step.strategy
    reduced = _reduction(
        step, trained_bytes(step, step.sizes.gradient), ceil(step.trained_elements / max(sharding.reduce_bucket, 1))
    )
    computation = (
        _backward_seconds(step, micro_batch) if sharding.overlap_comm and strategy.shards_optimizer_states else 0.0
    )
    times = step.work.accumulation if strategy.reduces == "every micro batch" else 1
    yield OverlapWindow(times, (reduced,), computation)
    if strategy.shards_optimizer_states:
        size = trained_bytes(step, step.sizes.adapter if step.trains_adapter else step.sizes.trained)
        yield OverlapWindow(1, (Collective(size, 1, ceil(step.trained_elements / max(sharding.allgather_bucket, 1))),))


def gathers_per_micro_batch(step: TrainingStep) -> float:
    """Number of times that a micro batch gathers the weights: once in each forward pass, and once more for the layers
    that gradients visit. A layer that is recomputed keeps the gathered weights for that."""
    return forward_passes(step) + _backward_layer_share(step)


def _zero3_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Return the windows of ZeRO-3: weights, also frozen ones, are gathered module by module, the next ones during the
    module at work. Gradients are reduced and scattered after every micro batch, under overlap_comm during the backward
    pass."""
    sharding, passes = step.sharding, gathers_per_micro_batch(step)
    size = base_weight_bytes(step) + (trained_bytes(step, step.sizes.adapter) if step.trains_adapter else 0.0)
    bundles = min(_gathered_tensors(step), ceil(step.parameters / max(sharding.prefetch_bucket, 1)))
    gathered = Collective(passes * size + reference_weight_bytes(step), 1, passes * bundles)
    scattered = _reduction(
        step, trained_bytes(step, step.sizes.gradient), ceil(step.trained_elements / max(sharding.reduce_bucket, 1))
    )
    overlapping = (gathered, scattered) if sharding.overlap_comm else (gathered,)
    yield OverlapWindow(step.work.accumulation, overlapping, micro_batch.forward + micro_batch.backward)
    if not sharding.overlap_comm:
        yield OverlapWindow(step.work.accumulation, (scattered,))


def _gathered_tensors(step: TrainingStep) -> int:
    """Number of matrices of all layers, with two for each adapter. The experts of a layer are gathered as one
    (LLaMA-Factory, model_utils/moe.py, add_z3_leaf_module)."""
    return sum(
        count * (1 if linear.routed else linear.number * (3 if step.is_adapted(linear) else 1))
        for count, layer in step.layers
        for linear in layer.linears
    )


def _fsdp_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Return the windows of FSDP: weights are gathered layer by layer in compute precision, once more for the backward
    pass if layers release them after the forward pass; gradients are reduced and scattered during the last backward
    pass alone."""
    times, layers = step.work.accumulation, step.arch.layers
    stored = base_weight_bytes(step) / (step.work.base_bytes * step.parameters) if step.work.quant_bits else 1.0
    passes = 1.0 if step.strategy.keeps_gathered else gathers_per_micro_batch(step)
    gathered = Collective(passes * step.sizes.compute * stored * step.parameters, 1, passes * layers)
    scattered = _reduction(step, trained_bytes(step, step.sizes.compute), layers)
    computation = micro_batch.forward + micro_batch.backward
    yield OverlapWindow(times - 1, (gathered,), computation)
    yield OverlapWindow(1, (gathered, scattered), computation)
