"""The moments around the loss: what the forward pass leaves behind, and the logits. Bytes by term on the worst
device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from . import crossing, encoder, head
from .attention import mask
from .casts import head_cast, layer_casts
from .feedforward import width
from .gradients import earlier
from .inputs import layer_inputs
from .layer import checkpoint, kept
from .matrices import dequantized, normed
from .optimizer import optimizer
from .run import Run
from .terms import Device
from .traffic import Where, buckets, gathered
from .weights import adapter, reference, weights

Terms = Mapping[Device, float]


@lru_cache(maxsize=64)
def resident(run: Run) -> Terms:
    """What stays on the device through the whole step, gradients apart."""
    return {
        Device.WEIGHTS: weights(run),
        Device.ADAPTER: adapter(run),
        Device.OPTIMIZER: optimizer(run),
        Device.REFERENCE: reference(run),
    }


def base(run: Run, where: Where) -> Terms:
    """What is there during the whole forward and backward pass."""
    return {
        **resident(run),
        Device.GATHER: gathered(run, where),
        Device.BUCKETS: buckets(run),
        Device.PIXELS: encoder.pixels(run),
        Device.TOWERS: encoder.kept(run) + encoder.passed(run) + crossing.states(run),
        Device.LAYER_INPUTS: layer_inputs(run),
        Device.MASK: mask(run) + crossing.mask(run),
    }


def _casts(run: Run) -> float:
    """Autocast's copies of all trained matrices but the output layer's."""
    return layer_casts(run) + encoder.casts(run)


def last_layer(run: Run) -> Terms:
    """The end of the layers, when autocast's copies of all of them are there: results of `gate` and `up`, and a matrix
    that is rebuilt."""
    block = run.visited[-1][1]
    results = 2 * run.sizes.compute * run.tokens * width(run, block)
    return {
        **base(run, "last layer"),
        **kept(run),
        Device.GRADIENTS: earlier(run),
        Device.WEIGHT_CASTS: _casts(run),
        Device.RESULTS: results if run.checkpointing != "off" else 0.0,
        Device.REBUILT: dequantized(run, block.linears) + normed(run, block),
    }


def _hidden_states(run: Run) -> float:
    """A value head asks the model for the results of all its layers, checkpointed or not (trl,
    modeling_value_head.py)."""
    if not run.work.value_head:
        return 0.0
    counted = kept(run).get(Device.CHECKPOINTS, 0.0)
    return max((run.arch.layers + 1) * checkpoint(run) - counted, 0.0)


def loss_forward(run: Run) -> Terms:
    """Preference stages make their loss when autocast's copies of checkpointed layers have gone: there it is that, or
    the logits alone beside the copies."""
    inside = {
        **base(run, "loss"),
        **kept(run),
        Device.GRADIENTS: earlier(run),
        Device.WEIGHT_CASTS: _casts(run) + head_cast(run),
        Device.HIDDEN_STATES: _hidden_states(run),
        Device.HEAD: head.head_kept(run),
        Device.LOGITS: head.logits_forward(run),
    }
    if not run.work.needs_full_logits or run.checkpointing == "off":
        return inside
    outside = {**inside, Device.WEIGHT_CASTS: head_cast(run)}
    return max(outside, {**inside, Device.LOGITS: head.logits_inside(run)}, key=lambda terms: sum(terms.values()))


def loss_backward(run: Run) -> Terms:
    """Without checkpoints every layer still holds the half-precision weights that its backward pass will use."""
    inside = _casts(run) if run.checkpointing == "off" else 0.0
    return {
        **base(run, "loss"),
        **kept(run),
        Device.GRADIENTS: earlier(run),
        Device.WEIGHT_CASTS: inside + head_cast(run),
        Device.HEAD: head.head_kept(run),
        Device.LOGITS: head.logits_backward(run),
    }


def evaluation(run: Run) -> Terms:
    if not run.work.eval_batch:
        return {}
    return {
        **base(run, "loss"),
        Device.WEIGHT_CASTS: _casts(run) + head_cast(run),
        Device.LOGITS: head.logits_evaluation(run),
    }
