"""The moments of a training step at which memory can peak. Each gives bytes by term on the worst device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import head, traffic
from .activations import Kept, layer, tokens
from .optimizer import step_bytes
from .precision import element_bytes
from .shapes import Block, adapter_elements, blocks, embedding
from .states import gradients, head_elements, resident
from .workload import Architecture, Workload

Terms = dict[str, float]


def active_layers(arch: Architecture, workload: Workload) -> list[tuple[int, Block]]:
    """The layers that the backward pass visits: below the first trained layer nothing is kept."""
    kinds = blocks(arch, workload.experts_fused)
    return [(workload.trainable_layers, kinds[-1][1])] if workload.method == "freeze" else list(kinds)


def _checkpoint(arch: Architecture, workload: Workload) -> float:
    """Bytes of one layer's checkpoint: its input, in the precision of the residual stream."""
    return element_bytes(workload).residual * tokens(workload) * arch.hidden


def _kept(arch: Architecture, workload: Workload) -> Terms:
    """What all layers keep between the forward and the backward pass."""
    layers = active_layers(arch, workload)
    count = sum(number for number, _ in layers)
    match workload.checkpointing:
        case "layer":
            return {"checkpoints": count * _checkpoint(arch, workload)}
        case "offloaded":
            return {"checkpoints": 2 * _checkpoint(arch, workload)}
    return {"activations": sum(number * layer(arch, block, workload).total for number, block in layers)}


def _cast_elements(arch: Architecture, block: Block, workload: Workload) -> float:
    """Elements of one layer's trained matrices that autocast copies to half precision."""
    if workload.precision != "amp":
        return 0.0
    if workload.method in ("full", "freeze"):
        return block.linear_elements + block.experts
    return sum(adapter_elements(linear, workload) for linear in block.linears)


def _casts(arch: Architecture, workload: Workload, with_head: bool = True) -> float:
    """Half-precision copies of all trained matrices: autocast caches them until the forward pass ends."""
    inside = sum(number * _cast_elements(arch, block, workload) for number, block in active_layers(arch, workload))
    return 2.0 * inside + (_head_cast(arch, workload) if with_head else 0.0)


def _head_cast(arch: Architecture, workload: Workload) -> float:
    return 2.0 * head_elements(arch) if element_bytes(workload).casts and workload.method == "full" else 0.0


def _earlier_gradients(arch: Architecture, workload: Workload) -> float:
    """Gradients there before the backward pass: those of earlier micro batches, and ZeRO-3's standing buffer."""
    standing = workload.accumulation > 1 or workload.sharding.stage == 3
    return gradients(arch, workload) if standing else 0.0


def _base(arch: Architecture, workload: Workload) -> Terms:
    return {
        **resident(arch, workload),
        "gather": traffic.gathered(arch, workload),
        "buckets": traffic.buckets(arch, workload),
    }


def loss_forward(arch: Architecture, workload: Workload) -> Terms:
    return {
        **_base(arch, workload),
        **_kept(arch, workload),
        "gradients": _earlier_gradients(arch, workload),
        "weight_casts": _casts(arch, workload),
        "head": head.kept(arch, workload),
        "logits": head.forward_bytes(arch, workload),
    }


def loss_backward(arch: Architecture, workload: Workload) -> Terms:
    kept_casts = _casts(arch, workload) if workload.checkpointing == "off" else _head_cast(arch, workload)
    return {
        **_base(arch, workload),
        **_kept(arch, workload),
        "gradients": _earlier_gradients(arch, workload),
        "weight_casts": kept_casts,
        "head": head.kept(arch, workload),
        "logits": head.backward_bytes(arch, workload),
    }


def head_gradient(arch: Architecture, workload: Workload) -> Terms:
    """The output layer's weight gradient: in compute precision, then in the gradient's own."""
    sizes, trains = element_bytes(workload), workload.method == "full"
    terms = loss_backward(arch, workload)
    new = (sizes.gradient + (sizes.compute if sizes.casts else 0.0)) * head_elements(arch) if trains else 0.0
    terms["logits"] = 2.0 * tokens(workload) * arch.vocab if workload.loss != "fused" else 0.0
    terms["new_gradient"] = new
    return terms


def _points(block: Block, kept: Kept) -> Iterator[tuple[float, float]]:
    """(activation bytes, elements of the layer whose gradients exist) at the critical points of a layer's backward."""
    down = sum(linear.elements for linear in block.linears if linear.role == "down")
    feed_forward = block.experts + sum(
        linear.elements for linear in block.linears if linear.role in ("gate", "up", "gate_up", "down")
    )
    yield kept.total + kept.ffn_peak, down
    yield kept.attention + kept.attention_peak, feed_forward
    yield 0.0, block.elements


def _gradient_progress(arch: Architecture, workload: Workload, done: float, whole: float) -> float:
    """Bytes of gradients when `done` of `whole` base elements have theirs. Sharded gradients leave for their owner."""
    full = gradients(arch, workload)
    sharded = workload.sharding.stage >= 2 or workload.sharding.fsdp
    if workload.accumulation > 1 or sharded:
        return full
    return full * min(1.0, done / whole)


def _largest_new_gradient(block: Block, workload: Workload) -> float:
    """One weight gradient in flight: its compute-precision form, and its own form where it is added to an earlier one."""
    if workload.method not in ("full", "freeze"):
        return 0.0
    sizes = element_bytes(workload)
    largest = max(linear.inputs * linear.outputs for linear in block.linears)
    own = sizes.gradient if workload.accumulation > 1 or workload.sharding.stage >= 2 else 0.0
    return largest * (own + (sizes.compute if sizes.casts else 0.0))


def _dequantized(block: Block, workload: Workload) -> float:
    """The largest quantized matrix in compute precision, made for its product and dropped again."""
    return 2.0 * max(linear.inputs * linear.outputs for linear in block.linears) if workload.quant_bits else 0.0


def _layer_backward(arch: Architecture, workload: Workload, last: bool) -> Terms:
    layers = active_layers(arch, workload)
    number, block = layers[-1] if last else layers[0]
    kept, checkpointed = layer(arch, block, workload), workload.checkpointing != "off"
    whole = sum(count * kind.elements for count, kind in layers) + (
        head_elements(arch) if workload.method == "full" else 0
    )
    before = (head_elements(arch) if workload.method == "full" else 0) if last else whole - block.elements
    all_kept = _kept(arch, workload)
    remaining = sum(all_kept.values()) if last else (_checkpoint(arch, workload) if checkpointed else kept.total)
    best: Terms = {}
    for activation, done in _points(block, kept):
        beside = remaining if checkpointed else remaining - kept.total
        casts = 2.0 * _cast_elements(arch, block, workload)
        terms = {
            **_base(arch, workload),
            "checkpoints" if checkpointed else "activations": beside,
            "weight_casts": _casts(arch, workload, with_head=False) if last and not checkpointed else casts,
            "gradients": _gradient_progress(arch, workload, before + done, whole),
            "new_gradient": _largest_new_gradient(block, workload),
            "dequantized": _dequantized(block, workload),
        }
        terms["activations"] = terms.get("activations", 0.0) + activation
        if sum(terms.values()) > sum(best.values()):
            best = terms
    return best


def last_layer_backward(arch: Architecture, workload: Workload) -> Terms:
    return _layer_backward(arch, workload, last=True)


def first_layer_backward(arch: Architecture, workload: Workload) -> Terms:
    return _layer_backward(arch, workload, last=False)


def embedding_backward(arch: Architecture, workload: Workload) -> Terms:
    """The embedding's gradient is dense; where one exists already (tied, or accumulated) both are there for a moment."""
    trains = workload.method == "full" or workload.adapter.full_embedding
    second = arch.tied or workload.accumulation > 1 or workload.sharding.stage >= 2
    new = element_bytes(workload).gradient * embedding(arch) if trains and second else 0.0
    return {
        **_base(arch, workload),
        "gradients": gradients(arch, workload),
        "new_gradient": new,
        "activations": _checkpoint(arch, workload),
    }


def step(arch: Architecture, workload: Workload) -> Terms:
    return {**_base(arch, workload), "gradients": gradients(arch, workload), "step": step_bytes(arch, workload)}


def evaluation(arch: Architecture, workload: Workload) -> Terms:
    casts = _casts(arch, workload) if workload.eval_batch else 0.0
    return {**_base(arch, workload), "weight_casts": casts, "logits": head.evaluation_bytes(arch, workload)}


MOMENTS: dict[str, Callable[[Architecture, Workload], Terms]] = {
    "loss forward": loss_forward,
    "loss backward": loss_backward,
    "output layer gradient": head_gradient,
    "last layer backward": last_layer_backward,
    "first layer backward": first_layer_backward,
    "embedding backward": embedding_backward,
    "optimizer step": step,
    "evaluation": evaluation,
}
