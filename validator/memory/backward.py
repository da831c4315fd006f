"""The moments of the layers' backward pass. Bytes by term on the worst device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .casts import cast_elements, layer_casts
from .feedforward import width
from .forward import Terms, base
from .gradients import in_flight, progress
from .layer import Kept, checkpoint, kept, layer
from .matrices import dequantized, elements, largest, normed
from .run import Place, Run
from .shapes import Block
from .terms import Device


class Point(NamedTuple):
    """A critical point in a layer's backward pass."""

    activations: float
    done: float  # elements whose gradients exist
    pending: float  # elements whose half-precision copies are still held
    in_flight: float  # elements of the weight gradient that is being made
    rebuilt: float = 0.0  # bytes of a matrix that is rebuilt for its product


def _points(run: Run, block: Block, inside: Kept) -> Iterator[Point]:
    """The feed-forward half with everything kept; its inputs' products, when the gradients of its inner results have
    taken the place of these; the attention half; the end."""
    down, attention = elements(block.down), elements(block.attention)
    forward = block.matrices - attention
    inner = run.tokens * run.sizes.compute * width(run, block)
    yield Point(inside.total + inside.ffn_peak, down, block.matrices - down, 0, dequantized(run, block.down))
    yield Point(inside.total - inner, down, block.matrices - down, 0, dequantized(run, block.readers))
    widest = max(largest((*block.down, *block.readers)), _stacked(run, block))
    yield Point(inside.attention, forward, attention, widest)
    yield Point(inside.attention, forward, attention, 0, dequantized(run, block.attention))
    yield Point(inside.attention + inside.attention_peak, forward, attention, 0)
    yield Point(0.0, block.elements, 0, largest(block.attention))


def _stacked(run: Run, block: Block) -> int:
    """Elements of the larger of the two tensors that hold the matrices of all experts."""
    return block.experts * 2 // 3 if run.arch.ffn.gated else block.experts // 2


def _recomputed(run: Run, block: Block, inside: Kept) -> Point:
    """The end of the forward pass of a layer, with everything kept: the last adapter's input in its own precision, and
    the matrices that DoRA rebuilds."""
    work = run.work
    adapted = [each for each in block.down if each.role in work.adapter.targets and work.method == "lora"]
    cast = 4.0 if work.precision == "amp" and not work.quant_bits else 0.0
    entering = cast * run.tokens * max((each.inputs for each in adapted), default=0)
    rebuilt = normed(run, block) + dequantized(run, block.linears)
    return Point(inside.total + entering, 0, block.matrices, 0, rebuilt)


def _held_by_hooks(run: Run) -> float:
    """Checkpoints that FSDP keeps to the end of the backward pass, and their gradients.

    The hook that frees a unit without gradients keeps the graph nodes of its inputs (torch
    distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook); under reentrant checkpointing these
    are the checkpoints. Of the gradients all but those of the first two layers are there by then."""
    if not (run.sharding.fsdp and run.adapts) or run.checkpointing != "layer":
        return 0.0
    return checkpoint(run) * (2 * run.arch.layers - 3)


class Around(NamedTuple):
    """What is there beside the layer at work. Bytes, but for `done`."""

    standing: Terms
    done: float  # elements of base weights whose gradients exist
    checkpoints: float = 0.0
    activations: float = 0.0
    casts: float = 0.0


def _at(run: Run, block: Block, point: Point, around: Around) -> Terms:
    trained = cast_elements(run, block) / block.matrices
    return {
        **around.standing,
        Device.CHECKPOINTS: around.checkpoints,
        Device.ACTIVATIONS: point.activations + around.activations,
        Device.WEIGHT_CASTS: around.casts + 2.0 * trained * point.pending,
        Device.GRADIENTS: progress(run, around.done + point.done),
        Device.NEW_GRADIENT: in_flight(run, block, point.in_flight),
        Device.REBUILT: point.rebuilt,
    }


def _peak(run: Run, block: Block, around: Around, recomputes: bool) -> Terms:
    """At the point of this layer's backward pass that needs most."""
    inside = layer(run, block)
    points = [*_points(run, block, inside), *([_recomputed(run, block, inside)] if recomputes else [])]
    return max((_at(run, block, point, around) for point in points), key=lambda terms: sum(terms.values()))


def last_layer(run: Run) -> Terms:
    """The first layer of the backward pass: all checkpoints, few gradients."""
    return max((_closing(run, each) for each in run.closing), key=lambda terms: sum(terms.values()))


def _closing(run: Run, place: Place) -> Terms:
    """A layer when the backward pass has left those between it and the last."""
    others = sum(kept(run).values())
    trains = place.elements + (run.head if run.work.method == "full" else 0)
    around = Around(base(run, "last layer"), trains)
    if run.checkpointing != "off":
        left = others - place.passed * checkpoint(run)
        return _peak(run, place.block, around._replace(checkpoints=left), recomputes=True)
    activations = others - layer(run, place.block).total
    casts = layer_casts(run) - 2.0 * cast_elements(run, place.block)
    return _peak(run, place.block, around._replace(activations=activations, casts=casts), recomputes=True)


def first_layer(run: Run) -> Terms:
    """The last layer of the backward pass: one checkpoint, nearly all gradients."""
    return max((_opening(run, each) for each in run.opening), key=lambda terms: sum(terms.values()))


def _opening(run: Run, place: Place) -> Terms:
    """A layer when those between it and the first are left to the backward pass."""
    block, checkpointed = place.block, run.checkpointing != "off"
    done = sum(number * kind.elements for number, kind in run.visited) - block.elements - place.elements
    done += run.head if run.work.method == "full" else 0
    checkpoints = (1 + place.passed) * checkpoint(run) + _held_by_hooks(run) if checkpointed else 0.0
    return _peak(run, block, Around(base(run, "first layer"), done, checkpoints), recomputes=checkpointed)
