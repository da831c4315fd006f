"""Seconds of a step that devices wait for communication (all-reduce, all-gather, reduce-scatter), without the part that
computation hides.

The formulas count the bytes that the installed software moves, which differ from the bytes in the papers. DeepSpeed
reduces the gradients of stages 1 and 2 in whole all-reduces (runtime/zero/stage_1_and_2.py, allreduce_bucket), and
stage 2 does so after every micro batch. DDP and FSDP reduce gradients in the last micro batch only (transformers,
trainer.py; accelerate, no_sync)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Literal, NamedTuple

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


# The devices that exchange data in one ring. all: all devices of the run. node: the devices of one node. second copy:
# the devices that hold a second copy of the weights among them (hpZ). across: one device of each node; each device of a
# node is in a ring of its own.
Ring = Literal["all", "node", "second copy", "across"]


class Collective(NamedTuple):
    """A number of collective operations, `calls`, that carry tensors of `size` bytes in total. Every byte goes round
    the ring `rounds` times: once in an all-gather or a reduce-scatter, twice in an all-reduce. For the ring `across`,
    `size` is the sum over the rings of all devices of a node, because these share the node's network."""

    size: float
    rounds: int
    calls: float
    ring: Ring = "all"


def _ring(sharding: Sharding, ring: Ring) -> tuple[int, bool]:
    """Return the number of devices in a ring, and whether the ring crosses the network between nodes."""
    match ring:
        case "node":
            return sharding.devices_per_node, False
        case "second copy":
            return sharding.second_copy_devices, sharding.second_copy_devices > sharding.devices_per_node
        case "across":
            return sharding.nodes, True
    return sharding.world_size, sharding.nodes > 1


def slowest_link(device: DeviceRates, sharding: Sharding, ring: Ring = "all") -> tuple[TimeTerm, float]:
    """Return the time term and the bytes per second of the link that limits a ring collective: the link between the
    devices of a node, or the network between nodes if the ring crosses it and it is slower.

    In a ring, each link carries all gathered bytes except the share of the last hop. So does the network of each node,
    which the devices of the node share. Devices without links of their own communicate through main memory and share
    its bandwidth."""
    link = device.link
    if not device.nvlink_switch:
        link = min(link, _SHARE_THROUGH_HOST_MEMORY * device.host_bandwidth / sharding.devices_per_node)
    if _ring(sharding, ring)[1] and 0 < device.network < link:
        return TimeTerm.NETWORK, device.network
    return TimeTerm.COMMUNICATION, link


def collective_seconds(collective: Collective, device: DeviceRates, sharding: Sharding) -> float:
    """Seconds that `collective` takes as ring operations (Patarasu and Yuan, Bandwidth optimal all-reduce algorithms,
    2009). Zero for a ring of one device."""
    devices, _ = _ring(sharding, collective.ring)
    if devices == 1:
        return 0.0
    travel = collective.size * (devices - 1) / devices / slowest_link(device, sharding, collective.ring)[1]
    start = collective.calls * (_START_SECONDS + _HOP_SECONDS * (devices - 1))
    return collective.rounds * travel + start


# Traffic beside computation takes processors and memory bandwidth from it, and so costs this share of its own time even
# where it hides; and it hides behind no more than this share of the computation. Qwen2.5-14B on 8 A800 takes 10.32 s
# under ZeRO-2, which waits for all of 0.83 s, and 10.56 under ZeRO-3, with 1.09 s of traffic (ms-swift); on two
# RTX 3090 Llama-2-7B with LoRA takes 3.8 s longer by FSDP than by DDP at any micro batch (fsdp_qlora).
_INTERFERENCE_SHARE, _HIDDEN_SHARE = 0.7, 0.9
# DDP reduces buckets of this many bytes as they fill (torch, nn/parallel/distributed.py).
_DDP_BUCKET_BYTES = 25 * 2**20


class OverlapWindow(NamedTuple):
    """`times` equal parts of an optimizer step, such as its micro batches. In each part the `collectives` run while the
    device computes for `behind` seconds; 0: the device does not compute meanwhile."""

    times: int
    collectives: tuple[Collective, ...]
    behind: float = 0.0


def communication_seconds(
    step: TrainingStep, device: DeviceRates, micro_batch: MicroBatchCosts
) -> Mapping[TimeTerm, float]:
    """Seconds of one optimizer step in which devices wait for communication, by time term: `network` for collectives
    that the network between nodes limits, else `communication`. Empty for one device. What computation hides is taken
    from all collectives of a window alike."""
    seconds: defaultdict[TimeTerm, float] = defaultdict(float)
    if step.sharding.world_size == 1:
        return seconds
    for window in communication_windows(step, micro_batch):
        each = [collective_seconds(collective, device, step.sharding) for collective in window.collectives]
        if not (total := sum(each)):
            continue
        exposed = window.times * max(_INTERFERENCE_SHARE * total, total - _HIDDEN_SHARE * window.behind)
        for collective, share in zip(window.collectives, each, strict=True):
            seconds[slowest_link(device, step.sharding, collective.ring)[0]] += exposed * share / total
    return seconds


def communication_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Yield all communication of one optimizer step, in the parts of the step in which it runs."""
    match step.strategy.gathers:
        case "module":
            return _zero3_windows(step, micro_batch)
        case "layer":
            return _fsdp_windows(step, micro_batch)
    return _zero_windows(step, micro_batch) if step.strategy.deepspeed else _ddp_windows(step, micro_batch)


def _backward_seconds(step: TrainingStep, micro_batch: MicroBatchCosts) -> float:
    """Seconds of a micro batch's backward pass. It counts as twice the forward pass, or once if the base weights are
    frozen, and once more if activations are recomputed."""
    products = (1 if step.trains_adapter else 2) + (0 if step.checkpointing == "off" else 1)
    share = products * _backward_layer_share(step)
    return (micro_batch.forward + micro_batch.backward) * share / (1 + share)


def _backward_layer_share(step: TrainingStep) -> float:
    """Share of the layers' elements that belong to layers which the backward pass visits."""
    total = sum(number * layer.elements for number, layer in step.layers)
    return sum(number * layer.elements for number, layer in step.backward_layers) / total


def _reduction(step: TrainingStep, size: float, calls: float) -> Collective:
    """Return the collective that reduces `size` bytes of gradients in `calls` operations over the devices of a shard
    group: an all-reduce or a reduce-scatter, depending on the sharding strategy."""
    return Collective(size, 2 if step.strategy.collective == "all_reduce" else 1, calls, _shard_ring(step))


def _shard_ring(step: TrainingStep) -> Ring:
    """Return the ring of the devices over which the states are sharded."""
    return "node" if step.sharding.replicated_across_nodes else "all"


def _ddp_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Yield the communication of DDP: one all-reduce of all gradients per step, overlapped with the last micro batch's
    backward pass."""
    size = trained_bytes(step, step.sizes.gradient)
    yield OverlapWindow(
        1, (_reduction(step, size, ceil(size / _DDP_BUCKET_BYTES)),), _backward_seconds(step, micro_batch)
    )


def _zero_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Yield the communication of ZeRO stages 0 to 2. Gradients are all-reduced; in stages 1 and 2 this overlaps with
    the backward pass if `overlap_comm` is set. Then stages 1 and 2 all-gather the updated weights."""
    sharding, strategy = step.sharding, step.strategy
    all_reduce = _reduction(
        step, trained_bytes(step, step.sizes.gradient), ceil(step.trained_elements / max(sharding.reduce_bucket, 1))
    )
    computation = (
        _backward_seconds(step, micro_batch) if sharding.overlap_comm and strategy.shards_optimizer_states else 0.0
    )
    times = step.work.accumulation if strategy.reduces == "every micro batch" else 1
    yield OverlapWindow(times, (all_reduce,), computation)
    if strategy.shards_optimizer_states:
        size = trained_bytes(step, step.sizes.adapter if step.trains_adapter else step.sizes.trained)
        yield OverlapWindow(1, (Collective(size, 1, ceil(step.trained_elements / max(sharding.allgather_bucket, 1))),))


def gathers_per_micro_batch(step: TrainingStep) -> float:
    """Number of times that a micro batch all-gathers the weights: once in each forward pass, and once more for the
    layers that the backward pass visits. A recomputed layer keeps its gathered weights for its backward pass."""
    return forward_passes(step) + _backward_layer_share(step)


def _zero3_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Yield the communication of ZeRO-3. All weights, frozen weights included, are all-gathered module by module, each
    while the previous module computes. Gradients are reduce-scattered after every micro batch; this overlaps with
    computation if `overlap_comm` is set.

    With a second copy of the weights (hpZ) only the first forward pass after an update gathers trained weights over all
    devices, and all other gathers stay among the devices of the copy (deepspeed, runtime/zero/stage3.py,
    invalidate_secondary_tensor)."""
    sharding, times, passes = step.sharding, step.work.accumulation, gathers_per_micro_batch(step)
    sent = 0.5 if sharding.weights_sent_in_8_bits else 1.0
    adapter = trained_bytes(step, step.sizes.adapter) if step.trains_adapter else 0.0
    size = sent * (passes * (base_weight_bytes(step) + adapter) + reference_weight_bytes(step))
    calls = passes * min(_gathered_tensors(step), ceil(step.parameters / max(sharding.prefetch_bucket, 1)))
    reductions = tuple(_zero3_reductions(step))
    computation = micro_batch.forward + micro_batch.backward
    if sharding.second_copy_devices:
        updated = sent * (adapter or trained_bytes(step, step.sizes.trained))
        share = updated / size
        first = (
            Collective(updated, 1, share * calls),
            Collective(size - updated, 1, (1 - share) * calls, "second copy"),
        )
        gathers = [(1, first), (times - 1, (Collective(size, 1, calls, "second copy"),))]
    else:
        gathers = [(times, (Collective(size, 1, calls),))]
    for number, gather in gathers:
        yield OverlapWindow(number, (*gather, *reductions) if sharding.overlap_comm else gather, computation)
    if not sharding.overlap_comm:
        yield OverlapWindow(times, reductions)


def _zero3_reductions(step: TrainingStep) -> Iterator[Collective]:
    """Yield the collectives that reduce the gradients of one micro batch under ZeRO-3: one reduce-scatter, or, if
    ZeRO++ sends them in 4 bits, an exchange within each node and then one of the sums between the nodes. Each exchange
    moves as many bytes as a reduce-scatter of 4-bit gradients (deepspeed, runtime/comm/coalesced_collectives.py,
    all_to_all_quant_reduce)."""
    size, sharding = trained_bytes(step, step.sizes.gradient), step.sharding
    calls = ceil(step.trained_elements / max(sharding.reduce_bucket, 1))
    if not sharding.gradients_sent_in_4_bits:
        yield _reduction(step, size, calls)
        return
    size *= 0.5 / step.sizes.gradient
    yield Collective(size, 1, calls, "node")
    if sharding.nodes > 1:
        yield Collective(size, 1, calls, "across")


def _gathered_tensors(step: TrainingStep) -> int:
    """Number of matrices that ZeRO-3 gathers in one pass through all layers. An adapted module counts with the two
    matrices of its adapter. The experts of a layer are gathered as one module (LLaMA-Factory, model_utils/moe.py,
    add_z3_leaf_module)."""
    return sum(
        count * (1 if linear.routed else linear.number * (3 if step.for_layer(layer).is_adapted(linear) else 1))
        for count, layer in step.layers
        for linear in layer.linears
    )


def _fsdp_windows(step: TrainingStep, micro_batch: MicroBatchCosts) -> Iterator[OverlapWindow]:
    """Yield the communication of FSDP. Weights are all-gathered layer by layer in compute precision, and once more for
    the backward pass if the strategy frees them after the forward pass. Gradients are reduce-scattered in the last
    micro batch only, overlapped with computation. Hybrid sharding does all this within each node, and then all-reduces
    the shards of the gradients between the nodes (torch, distributed/fsdp/_runtime_utils.py, _reduce_grad)."""
    times, layers = step.work.accumulation, step.arch.layers
    share = base_weight_bytes(step) / (step.work.base_bytes * step.parameters) if step.work.quant_bits else 1.0
    passes = 1.0 if step.strategy.keeps_gathered else gathers_per_micro_batch(step)
    all_gather = Collective(
        passes * step.sizes.compute * share * step.parameters, 1, passes * layers, _shard_ring(step)
    )
    gradients = trained_bytes(step, step.sizes.compute)
    reductions = [_reduction(step, gradients, layers)]
    if step.sharding.replicated_across_nodes:
        reductions.append(Collective(gradients, 2, layers, "across"))
    computation = micro_batch.forward + micro_batch.backward
    yield OverlapWindow(times - 1, (all_gather,), computation)
    yield OverlapWindow(1, (all_gather, *reductions), computation)
