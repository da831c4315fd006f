"""The moments of the backward pass below the loss. Bytes by term on the worst device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .activations import Kept, layer, tokens
from .forward import (
    Terms,
    active_layers,
    base,
    cast_elements,
    casts,
    checkpoint,
    head_cast,
    kept,
    loss_backward,
)
from .matrices import dequantized, elements, halves, largest, normed
from .precision import element_bytes
from .shapes import Block, embedding
from .states import accumulated, head_elements
from .workload import Architecture, Workload


class Point(NamedTuple):
    """A critical point in a layer's backward pass."""

    activations: float
    done: float  # elements whose gradients exist
    pending: float  # elements whose half-precision copies are still held
    in_flight: float  # elements of the weight gradient that is being made
    rebuilt: float = 0.0  # bytes of a matrix that is rebuilt for its product


def _points(block: Block, inside: Kept, width: float, workload: Workload) -> Iterator[Point]:
    """The feed-forward half with everything kept; its inputs' products, when gradients of `width` bytes each have
    taken the place of their results; the attention half; the end."""
    parts, whole = halves(block), block.linear_elements + block.experts
    down, attention = elements(parts.down), elements(parts.attention)
    forward = whole - attention
    yield Point(inside.total + inside.ffn_peak, down, whole - down, 0, dequantized(parts.down, workload))
    yield Point(inside.total - width, down, whole - down, 0, dequantized(parts.readers, workload))
    yield Point(inside.attention, forward, attention, largest((*parts.down, *parts.readers)))
    yield Point(inside.attention, forward, attention, 0, dequantized(parts.attention, workload))
    yield Point(inside.attention + inside.attention_peak, forward, attention, 0)
    yield Point(0.0, block.elements, 0, largest(parts.attention))


def _recomputed(block: Block, inside: Kept, workload: Workload) -> Point:
    """The end of the forward pass of a layer, with everything kept: the last adapter's input in its own precision, and
    the matrices that DoRA rebuilds."""
    whole, adapter = block.linear_elements + block.experts, workload.adapter
    down = [linear for linear in halves(block).down if linear.role in adapter.targets and workload.method == "lora"]
    cast = 4.0 if workload.precision == "amp" and not workload.quant_bits else 0.0
    entering = cast * tokens(workload) * max((linear.inputs for linear in down), default=0)
    rebuilt = normed(block, workload) + dequantized(block.linears, workload)
    return Point(inside.total + entering, 0, whole, 0, rebuilt)


def _progress(arch: Architecture, workload: Workload, done: float) -> float:
    """Bytes of gradients when `done` base elements have theirs.

    ZeRO's sharded gradients have a buffer of their own from the start; with accumulation all are there, and a tied
    output layer's new one waits for the embedding's."""
    sizes, fsdp = element_bytes(workload), workload.sharding.fsdp
    full, per_element = accumulated(arch, workload), sizes.gradient
    if workload.sharding.zero >= 2 or not full:
        return full
    if workload.accumulation > 1:
        waiting = arch.tied and workload.method == "full" and not fsdp
        return full + (per_element * embedding(arch) if waiting else 0.0)
    if workload.method == "full":
        return per_element * done / (workload.sharding.world if fsdp else 1)
    head = min(per_element, sizes.saved) * head_elements(arch) if workload.adapter.full_head else 0.0
    share = done / sum(number * block.elements for number, block in active_layers(arch, workload))
    return min(full, head + full * share)


def _new_gradient(point: Point, block: Block, workload: Workload) -> float:
    """One weight gradient in flight: in compute precision, and in its own where it is added to an earlier one."""
    if workload.method not in ("full", "freeze"):
        return 0.0
    sizes = element_bytes(workload)
    if workload.sharding.fsdp:
        return sizes.compute * block.elements
    own = sizes.gradient if workload.accumulation > 1 or workload.sharding.zero >= 2 else 0.0
    return point.in_flight * (own + (sizes.compute if sizes.casts else 0.0))


def _held_by_hooks(arch: Architecture, workload: Workload) -> float:
    """Checkpoints that FSDP keeps to the end of the backward pass, and their gradients.

    The hook that frees a unit without gradients keeps the graph nodes of its inputs (torch
    distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook); under reentrant checkpointing these
    are the checkpoints. Of the gradients all but those of the first two layers are there by then."""
    frozen = workload.sharding.fsdp and workload.method in ("lora", "oft")
    if not frozen or workload.checkpointing != "layer":
        return 0.0
    return checkpoint(arch, workload) * (2 * arch.layers - 3)


def _layer_backward(arch: Architecture, workload: Workload, last: bool) -> Terms:
    layers = active_layers(arch, workload)
    block = layers[-1][1] if last else layers[0][1]
    inside, checkpointed = layer(arch, block, workload), workload.checkpointing != "off"
    head_done = head_elements(arch) if workload.method == "full" else 0
    before = head_done if last else head_done + sum(number * kind.elements for number, kind in layers) - block.elements
    if last:
        others = sum(kept(arch, workload).values()) - (0.0 if checkpointed else inside.total)
    else:
        others = (checkpoint(arch, workload) if checkpointed else 0.0) + _held_by_hooks(arch, workload)
    width = arch.ffn.experts_per_token * arch.ffn.expert_width if block.experts else arch.ffn.width
    shared = base(arch, workload, "last layer" if last else "first layer")
    other_casts = casts(arch, workload) - 2.0 * cast_elements(block, workload) if last and not checkpointed else 0.0
    trained = cast_elements(block, workload) / (block.linear_elements + block.experts)
    points = [*_points(block, inside, tokens(workload) * element_bytes(workload).compute * width, workload)]
    if last or checkpointed:
        points.append(_recomputed(block, inside, workload))
    candidates = (
        {
            **shared,
            "checkpoints": others if checkpointed else 0.0,
            "activations": point.activations + (0.0 if checkpointed else others),
            "weight_casts": other_casts + 2.0 * trained * point.pending,
            "gradients": _progress(arch, workload, before + point.done),
            "new_gradient": _new_gradient(point, block, workload),
            "rebuilt": point.rebuilt,
        }
        for point in points
    )
    return max(candidates, key=lambda terms: sum(terms.values()))


def last_layer(arch: Architecture, workload: Workload) -> Terms:
    """The first layer of the backward pass: all checkpoints, few gradients."""
    return _layer_backward(arch, workload, last=True)


def first_layer(arch: Architecture, workload: Workload) -> Terms:
    """The last layer of the backward pass: one checkpoint, nearly all gradients."""
    return _layer_backward(arch, workload, last=False)


def head_gradient(arch: Architecture, workload: Workload) -> Terms:
    """The output layer's weight gradient: in compute precision beside the gradient of the logits; then, when its weight
    and that have gone, in its own precision, too."""
    sizes, matrix = element_bytes(workload), head_elements(arch)
    trains = workload.method == "full" or workload.adapter.full_head
    if workload.loss == "fused" or workload.value_head or not trains:
        return {}
    before, own = loss_backward(arch, workload), min(sizes.gradient, sizes.saved)
    logits = sizes.compute * tokens(workload) * arch.vocab
    if workload.precision != "amp":
        return {**before, "logits": logits, "new_gradient": own * matrix}
    if logits + head_cast(arch, workload) > own * matrix:
        return {**before, "logits": logits, "new_gradient": sizes.compute * matrix}
    inside = before["weight_casts"] - head_cast(arch, workload)
    return {**before, "logits": 0.0, "weight_casts": inside, "new_gradient": (sizes.compute + own) * matrix}


def embedding_gradient(arch: Architecture, workload: Workload) -> Terms:
    """The embedding's gradient is dense. Added to an earlier one it exists beside it; tied, beside the output
    layer's, and in half precision beside their sum too: the output layer's is a transposed view, except from a fused
    loss, that cannot be added to in place."""
    sizes = element_bytes(workload)
    trains = workload.method == "full" or workload.adapter.full_embedding
    copies = int(workload.accumulation > 1 or workload.sharding.zero >= 2)
    if arch.tied and workload.method == "full" and not workload.value_head:
        copies += 1 if sizes.casts or workload.loss == "fused" else 2
    return {
        **base(arch, workload, "embedding"),
        "gradients": accumulated(arch, workload),
        "new_gradient": copies * min(sizes.gradient, sizes.saved) * embedding(arch) if trains else 0.0,
        "activations": checkpoint(arch, workload),
    }
