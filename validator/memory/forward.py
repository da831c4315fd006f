"""The moments around the loss: what the forward pass leaves behind, and the logits. Bytes by term on the worst
device."""

from __future__ import annotations

from . import head, traffic
from .activations import layer, tokens
from .matrices import dequantized, normed
from .precision import element_bytes
from .shapes import Block, adapter_elements, blocks
from .states import accumulated, head_elements, mask, resident
from .workload import Architecture, Workload

Terms = dict[str, float]


def active_layers(arch: Architecture, workload: Workload) -> list[tuple[int, Block]]:
    """The layers that the backward pass visits: below the first trained layer nothing is kept."""
    kinds = blocks(arch, workload.experts_fused)
    return [(workload.trainable_layers, kinds[-1][1])] if workload.method == "freeze" else list(kinds)


def checkpoint(arch: Architecture, workload: Workload) -> float:
    """One layer's checkpoint: its input, in the precision of the residual stream."""
    return element_bytes(workload).residual * tokens(workload) * arch.hidden


def kept(arch: Architecture, workload: Workload) -> Terms:
    """What all layers keep between the forward and the backward pass; offloaded checkpoints keep two in flight."""
    layers = active_layers(arch, workload)
    match workload.checkpointing:
        case "layer":
            return {"checkpoints": sum(number for number, _ in layers) * checkpoint(arch, workload)}
        case "offloaded":
            return {"checkpoints": 2 * checkpoint(arch, workload)}
    return {"activations": sum(number * layer(arch, block, workload).total for number, block in layers)}


def cast_elements(block: Block, workload: Workload) -> float:
    """Elements of one layer's trained matrices that autocast copies to half precision."""
    if element_bytes(workload).casts:
        return block.linear_elements + block.experts
    if workload.precision == "amp" and workload.method in ("lora", "oft"):
        return sum(adapter_elements(linear, workload) for linear in block.linears)
    return 0.0


def head_cast(arch: Architecture, workload: Workload) -> float:
    """The half-precision copy of a trained output layer, which its backward pass still needs."""
    casts_head = element_bytes(workload).casts and workload.method == "full"
    if casts_head or (workload.adapter.full_head and workload.precision == "amp"):
        return 2.0 * head_elements(arch)
    return 0.0


def casts(arch: Architecture, workload: Workload) -> float:
    """Half-precision copies of all the layers' trained matrices: autocast caches them until the forward pass ends."""
    return 2.0 * sum(number * cast_elements(block, workload) for number, block in active_layers(arch, workload))


def earlier_gradients(arch: Architecture, workload: Workload) -> float:
    """Gradients there before the backward pass: those of earlier micro batches, and ZeRO-3's standing buffer."""
    standing = workload.accumulation > 1 or workload.sharding.zero == 3
    return accumulated(arch, workload) if standing else 0.0


def base(arch: Architecture, workload: Workload, where: traffic.Where) -> Terms:
    """What is there during the whole forward and backward pass."""
    return {
        **resident(arch, workload),
        "gather": traffic.gathered(arch, workload, where),
        "buckets": traffic.buckets(arch, workload),
        "mask": mask(arch, workload),
    }


def last_layer(arch: Architecture, workload: Workload) -> Terms:
    """The end of the layers, when autocast's copies of all of them are there: results of `gate` and `up`, and a matrix
    that is rebuilt."""
    sizes, block = element_bytes(workload), active_layers(arch, workload)[-1][1]
    width = arch.ffn.experts_per_token * arch.ffn.expert_width if block.experts else arch.ffn.width
    return {
        **base(arch, workload, "last layer"),
        **kept(arch, workload),
        "gradients": earlier_gradients(arch, workload),
        "weight_casts": casts(arch, workload),
        "results": 2 * sizes.compute * tokens(workload) * width if workload.checkpointing != "off" else 0.0,
        "rebuilt": dequantized(block.linears, workload) + normed(block, workload),
    }


def hidden_states(arch: Architecture, workload: Workload) -> float:
    """A value head asks the model for the results of all its layers, checkpointed or not (trl,
    modeling_value_head.py)."""
    if not workload.value_head:
        return 0.0
    counted = kept(arch, workload).get("checkpoints", 0.0)
    return max((arch.layers + 1) * checkpoint(arch, workload) - counted, 0.0)


def loss_forward(arch: Architecture, workload: Workload) -> Terms:
    """Preference stages make their loss when autocast's copies of checkpointed layers have gone: there it is that, or
    the logits alone beside the copies."""
    inside = {
        **base(arch, workload, "loss"),
        **kept(arch, workload),
        "gradients": earlier_gradients(arch, workload),
        "weight_casts": casts(arch, workload) + head_cast(arch, workload),
        "hidden_states": hidden_states(arch, workload),
        "head": head.kept(arch, workload),
        "logits": head.forward_bytes(arch, workload),
    }
    if not workload.needs_full_logits or workload.checkpointing == "off":
        return inside
    bare = element_bytes(workload).compute * tokens(workload) * arch.vocab
    outside = {**inside, "weight_casts": head_cast(arch, workload)}
    return max(outside, {**inside, "logits": bare}, key=lambda terms: sum(terms.values()))


def loss_backward(arch: Architecture, workload: Workload) -> Terms:
    """Without checkpoints every layer still holds the half-precision weights that its backward pass will use."""
    inside = casts(arch, workload) if workload.checkpointing == "off" else 0.0
    return {
        **base(arch, workload, "loss"),
        **kept(arch, workload),
        "gradients": earlier_gradients(arch, workload),
        "weight_casts": inside + head_cast(arch, workload),
        "head": head.kept(arch, workload),
        "logits": head.backward_bytes(arch, workload),
    }


def evaluation(arch: Architecture, workload: Workload) -> Terms:
    if not workload.eval_batch:
        return {}
    return {
        **base(arch, workload, "loss"),
        "weight_casts": casts(arch, workload) + head_cast(arch, workload),
        "logits": head.evaluation_bytes(arch, workload),
    }
