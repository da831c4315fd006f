"""What devices send each other in a step, and what of it no computation hides. Seconds.

Bytes are those that the installed software moves, not those of the papers: DeepSpeed reduces the gradients of stages 1
and 2 in whole all-reduces (runtime/zero/stage_1_and_2.py, allreduce_bucket), and stage 2 does so after every micro
batch; DDP and FSDP spare all micro batches but the last (transformers, trainer.py; accelerate, no_sync)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import NamedTuple

from validator.memory.run import Run
from validator.memory.trained import trained_bytes
from validator.memory.weights import base_weights, whole_reference

from .collective import Collective, seconds, slowest
from .device import Device
from .passes import Passes
from .terms import Term
from .visits import forward_passes

# Traffic beside computation takes processors and memory bandwidth from it, and so costs this share of its own time even
# where it hides; and it hides behind no more than this share of the computation. Qwen2.5-14B on 8 A800 takes 10.32 s
# under ZeRO-2, which waits for all of 0.83 s, and 10.56 under ZeRO-3, with 1.09 s of traffic (ms-swift); on two
# RTX 3090 Llama-2-7B with LoRA takes 3.8 s longer by FSDP than by DDP at any micro batch (fsdp_qlora).
_COST, _HIDDEN = 0.7, 0.9
# DDP reduces buckets of this many bytes as they fill (torch, nn/parallel/distributed.py).
_DDP_BUCKET = 25 * 2**20


class Phase(NamedTuple):
    """`times` equal parts of a step in which collectives run beside `behind` seconds of computation."""

    times: int
    collectives: tuple[Collective, ...]
    behind: float = 0.0


def traffic(run: Run, device: Device, passes: Passes) -> Mapping[Term, float]:
    """Seconds of a step for which the devices wait for each other's bytes: over the links of a node, or, where that is
    slower, over the network between nodes."""
    if run.sharding.world == 1:
        return {}
    term, _ = slowest(device, run.sharding)
    return {term: sum(_exposed(run, device, phase) for phase in _phases(run, passes))}


def _exposed(run: Run, device: Device, phase: Phase) -> float:
    whole = sum(seconds(each, device, run.sharding) for each in phase.collectives)
    return phase.times * max(_COST * whole, whole - _HIDDEN * phase.behind)


def _phases(run: Run, passes: Passes) -> Iterator[Phase]:
    sharding = run.sharding
    if sharding.fsdp:
        return _fsdp(run, passes)
    if sharding.zero == 3:
        return _zero3(run, passes)
    return _zero(run, passes) if sharding.engine else _ddp(run, passes)


def _backward(run: Run, passes: Passes) -> float:
    """Seconds of the backward pass: twice the forward pass, once for frozen weights, and once more to compute again."""
    products = (1 if run.adapts else 2) + (0 if run.checkpointing == "off" else 1)
    share = products * _visited(run)
    return (passes.forward + passes.backward) * share / (1 + share)


def _visited(run: Run) -> float:
    """The share of the layers that gradients visit."""
    whole = sum(number * block.elements for number, block in run.layers)
    return sum(number * block.elements for number, block in run.visited) / whole


def _gradients(run: Run) -> float:
    """Bytes of all gradients, in the precision that they are trained in."""
    return trained_bytes(run, run.sizes.gradient)


def _ddp(run: Run, passes: Passes) -> Iterator[Phase]:
    """One all-reduce of all gradients a step, beside the last backward pass."""
    size = _gradients(run)
    yield Phase(1, (Collective(size, 2, ceil(size / _DDP_BUCKET)),), _backward(run, passes))


def _zero(run: Run, passes: Passes) -> Iterator[Phase]:
    """Stages 0 to 2 of an engine: gradients all-reduced, beside the backward pass where communication overlaps; then
    the updated weights gathered."""
    sharding, buckets = run.sharding, ceil(run.trained / max(run.sharding.reduce_bucket, 1))
    reduced = Collective(_gradients(run), 2, buckets)
    beside = _backward(run, passes) if sharding.overlap and sharding.zero else 0.0
    yield Phase(run.work.accumulation if sharding.zero == 2 else 1, (reduced,), beside)
    if sharding.zero:
        size = trained_bytes(run, run.sizes.adapter if run.adapts else run.sizes.trained)
        yield Phase(1, (Collective(size, 1, ceil(run.trained / max(sharding.allgather_bucket, 1))),))


def passed(run: Run) -> float:
    """How often a micro batch gathers the weights: in each forward pass, and for as many layers as gradients visit. A
    layer that is computed again keeps what it gathered for that."""
    return forward_passes(run) + _visited(run)


def _zero3(run: Run, passes: Passes) -> Iterator[Phase]:
    """Weights gathered module by module, frozen ones too; the next ones travel beside the module at work. Gradients are
    reduced and scattered after every micro batch, beside the backward pass where communication overlaps."""
    sharding, often = run.sharding, passed(run)
    size = base_weights(run) + (trained_bytes(run, run.sizes.adapter) if run.adapts else 0.0)
    bundles = min(_tensors(run), ceil(run.parameters / max(sharding.prefetch_bucket, 1)))
    gathered = Collective(often * size + whole_reference(run), 1, often * bundles)
    scattered = Collective(_gradients(run), 1, ceil(run.trained / max(sharding.reduce_bucket, 1)))
    together = (gathered, scattered) if sharding.overlap else (gathered,)
    yield Phase(run.work.accumulation, together, passes.forward + passes.backward)
    if not sharding.overlap:
        yield Phase(run.work.accumulation, (scattered,))


def _tensors(run: Run) -> int:
    """Matrices of all layers, with the two of each adapter. The experts of a layer are gathered as one (LLaMA-Factory,
    model_utils/moe.py, add_z3_leaf_module)."""
    return sum(
        count * (1 if linear.routed else linear.number * (3 if run.adapted(linear) else 1))
        for count, block in run.layers
        for linear in block.linears
    )


def _fsdp(run: Run, passes: Passes) -> Iterator[Phase]:
    """Weights gathered layer by layer in the precision of the computation, once more for the backward pass where layers
    give them back after the forward pass; gradients reduced and scattered beside the last backward pass alone."""
    times, layers = run.work.accumulation, run.arch.layers
    stored = base_weights(run) / (run.work.base_bytes * run.parameters) if run.work.quant_bits else 1.0
    often = passed(run) if run.sharding.stage == 3 else 1.0
    gathered = Collective(often * run.sizes.compute * stored * run.parameters, 1, often * layers)
    scattered = Collective(trained_bytes(run, run.sizes.compute), 1, layers)
    beside = passes.forward + passes.backward
    yield Phase(times - 1, (gathered,), beside)
    yield Phase(1, (gathered, scattered), beside)
