"""The moments of the backward pass below the loss. Bytes by term on the worst device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from .activations import Kept, layer, tokens
from .forward import Terms, active_layers, base, cast_elements, casts, checkpoint, kept, loss_backward
from .precision import element_bytes
from .shapes import Block, Linear, embedding
from .states import accumulated, head_elements
from .workload import Architecture, Workload


class Point(NamedTuple):
    """A critical point in a layer's backward pass."""

    activations: float
    done: float  # elements whose gradients exist
    pending: float  # elements whose half-precision copies are still held
    in_flight: float  # elements of the weight gradient that is being made


def _elements(linears: list[Linear]) -> int:
    return sum(linear.elements for linear in linears)


def _largest(linears: list[Linear]) -> int:
    return max((linear.inputs * linear.outputs for linear in linears), default=0)


class Halves(NamedTuple):
    """Elements of the linear modules of a layer's two halves, and of the largest matrix of each."""

    down: int
    attention: int
    largest_forward: int
    largest_attention: int


@lru_cache(maxsize=512)
def _halves(block: Block) -> Halves:
    forward = [linear for linear in block.linears if linear.role in ("gate", "up", "gate_up", "down")]
    attention = [linear for linear in block.linears if linear not in forward]
    down = _elements([linear for linear in forward if linear.role == "down"])
    return Halves(down, _elements(attention), _largest(forward), _largest(attention))


def _points(block: Block, inside: Kept) -> Iterator[Point]:
    """The feed-forward half with everything kept; the attention half when that is done; the end."""
    halves, whole = _halves(block), block.linear_elements + block.experts
    forward = whole - halves.attention
    yield Point(inside.total + inside.ffn_peak, halves.down, whole - halves.down, 0)
    yield Point(inside.attention, forward, halves.attention, halves.largest_forward)
    yield Point(inside.attention + inside.attention_peak, forward, halves.attention, 0)
    yield Point(0.0, block.elements, 0, halves.largest_attention)


def _progress(arch: Architecture, workload: Workload, done: float) -> float:
    """Bytes of gradients when `done` base elements have theirs.

    ZeRO's sharded gradients have a buffer of their own from the start; with accumulation all are there, and a tied
    output layer's new one waits for the embedding's."""
    full, per_element, fsdp = accumulated(arch, workload), element_bytes(workload).gradient, workload.sharding.fsdp
    if workload.sharding.zero >= 2 or not full:
        return full
    if workload.accumulation > 1:
        waiting = arch.tied and workload.method == "full" and not fsdp
        return full + (per_element * embedding(arch) if waiting else 0.0)
    if workload.method == "full":
        return per_element * done / (workload.sharding.world if fsdp else 1)
    return full * done / sum(number * block.elements for number, block in active_layers(arch, workload))


def _new_gradient(point: Point, block: Block, workload: Workload) -> float:
    """One weight gradient in flight: in compute precision, and in its own where it is added to an earlier one."""
    if workload.method not in ("full", "freeze"):
        return 0.0
    sizes = element_bytes(workload)
    if workload.sharding.fsdp:
        return sizes.compute * block.elements
    own = sizes.gradient if workload.accumulation > 1 or workload.sharding.zero >= 2 else 0.0
    return point.in_flight * (own + (sizes.compute if sizes.casts else 0.0))


def _rebuilt(block: Block, workload: Workload) -> float:
    """The largest matrix, rebuilt for its product and dropped again: dequantized in compute precision; under DoRA, for
    its norm, eight fp32 matrices: the adapter's product, their sum, and the gradients of these."""
    halves = _halves(block)
    each = (2.0 if workload.quant_bits else 0.0) + (
        32.0 if workload.adapter.dora and workload.method == "lora" else 0.0
    )
    return each * max(halves.largest_forward, halves.largest_attention)


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
    shared = base(arch, workload, "last layer" if last else "first layer")
    other_casts = casts(arch, workload) - 2.0 * cast_elements(block, workload) if last and not checkpointed else 0.0
    trained = cast_elements(block, workload) / (block.linear_elements + block.experts)
    candidates = (
        {
            **shared,
            "checkpoints": others if checkpointed else 0.0,
            "activations": point.activations + (0.0 if checkpointed else others),
            "weight_casts": other_casts + 2.0 * trained * point.pending,
            "gradients": _progress(arch, workload, before + point.done),
            "new_gradient": _new_gradient(point, block, workload),
            "rebuilt": _rebuilt(block, workload),
        }
        for point in _points(block, inside)
    )
    return max(candidates, key=lambda terms: sum(terms.values()))


def last_layer(arch: Architecture, workload: Workload) -> Terms:
    """The first layer of the backward pass: all checkpoints, few gradients."""
    return _layer_backward(arch, workload, last=True)


def first_layer(arch: Architecture, workload: Workload) -> Terms:
    """The last layer of the backward pass: one checkpoint, nearly all gradients."""
    return _layer_backward(arch, workload, last=False)


def head_gradient(arch: Architecture, workload: Workload) -> Terms:
    """The output layer's weight gradient: in compute precision, then in its own, beside the gradient of the logits."""
    sizes = element_bytes(workload)
    trains = workload.method == "full" or workload.adapter.full_head
    if workload.loss == "fused" or workload.value_head or not trains:
        return {}
    return {
        **loss_backward(arch, workload),
        "logits": sizes.compute * tokens(workload) * arch.vocab,
        "new_gradient": (sizes.gradient + (sizes.compute if workload.precision == "amp" else 0.0))
        * head_elements(arch),
    }


def embedding_gradient(arch: Architecture, workload: Workload) -> Terms:
    """The embedding's gradient is dense. Added to an earlier one it exists beside it; tied, beside the output
    layer's, and in half precision beside their sum too, the output layer's being a transposed view that cannot be
    added to in place."""
    sizes = element_bytes(workload)
    trains = workload.method == "full" or workload.adapter.full_embedding
    copies = int(workload.accumulation > 1 or workload.sharding.zero >= 2)
    if arch.tied and workload.method == "full":
        copies += 1 if sizes.casts else 2
    return {
        **base(arch, workload, "embedding"),
        "gradients": accumulated(arch, workload),
        "new_gradient": copies * sizes.gradient * embedding(arch) if trains else 0.0,
        "activations": checkpoint(arch, workload),
    }
