"""The moments when the two matrices over the vocabulary get their gradients. Bytes by term on the worst device."""

from __future__ import annotations

from .casts import head_cast
from .forward import Terms, base, loss_backward
from .gradients import accumulated
from .head import half_logits
from .layer import checkpoint
from .run import Run
from .terms import Device


def head_gradient(run: Run) -> Terms:
    """The output layer's weight gradient: in compute precision beside the gradient of the logits; then, when its weight
    and that have gone, in its own precision, too."""
    sizes = run.sizes
    if run.work.loss == "fused" or run.work.value_head or not run.trains_head:
        return {}
    before, own, logits = loss_backward(run), min(sizes.gradient, sizes.saved), half_logits(run)
    if run.work.precision != "amp":
        return {**before, Device.LOGITS: logits, Device.NEW_GRADIENT: own * run.head}
    if logits + head_cast(run) > own * run.head:
        return {**before, Device.LOGITS: logits, Device.NEW_GRADIENT: sizes.compute * run.head}
    return {
        **before,
        Device.LOGITS: 0.0,
        Device.WEIGHT_CASTS: before[Device.WEIGHT_CASTS] - head_cast(run),
        Device.NEW_GRADIENT: (sizes.compute + own) * run.head,
    }


def embedding_gradient(run: Run) -> Terms:
    """The embedding's gradient is dense. Added to an earlier one it exists beside it; tied, beside the output
    layer's, and in half precision beside their sum too: the output layer's is a transposed view, except from a fused
    loss, that cannot be added to in place."""
    sizes, work = run.sizes, run.work
    copies = int(work.accumulation > 1 or run.sharding.zero >= 2)
    if run.arch.tied and work.method == "full" and not work.value_head:
        copies += 1 if sizes.casts or work.loss == "fused" else 2
    each = min(sizes.gradient, sizes.saved)
    return {
        **base(run, "embedding"),
        Device.GRADIENTS: accumulated(run),
        Device.NEW_GRADIENT: copies * each * run.embedding if run.trains_embedding else 0.0,
        Device.TOWERS: 0.0,
        Device.ACTIVATIONS: checkpoint(run),
    }
