"""The moments of a run at which device memory can peak. Each gives bytes by term."""

from __future__ import annotations

from collections.abc import Callable

from . import backward, encoder, forward, vocabulary
from .forward import Terms, resident
from .gradients import accumulated, earlier, gradients
from .layer import checkpoint
from .run import Run
from .step import step_bytes
from .terms import Device
from .traffic import buckets
from .weights import loaded_weights, reference, whole_reference


def _whole_first(run: Run) -> bool:
    """Whether every device holds all weights before they are spread: a model that is quantized while it loads, or
    unpacked from a quantized checkpoint, skips ZeRO-3's partitioned initialization (transformers, modeling_utils.py,
    get_init_context, and quantizer_bnb_4bit.update_device_map), after which DeepSpeed's engine moves it to the device;
    and FSDP that starts after loading finds the model on the device."""
    sharding, work = run.sharding, run.work
    quantized = (work.quant_bits > 0 and not work.quant_grouped) or work.unpacked
    return (sharding.zero == 3 and quantized) or (sharding.fsdp and not sharding.sharded_load)


def loading(run: Run) -> Terms:
    """A full fine-tune under ZeRO below stage 3 raises its weights to fp32 on the device before the engine takes
    them."""
    if _whole_first(run):
        whole = whole_reference(run) if run.sharding.fsdp else 0.0
        weights = run.work.base_bytes * run.parameters if run.work.unpacked else loaded_weights(run)
        return {Device.WEIGHTS: weights, Device.REFERENCE: whole}
    if run.work.method != "full" or run.work.precision != "engine" or run.sharding.zero == 3:
        return {}
    return {Device.WEIGHTS: 4.0 * run.parameters, Device.REFERENCE: reference(run)}


def step(run: Run) -> Terms:
    """ZeRO-3's reduce bucket stands; below stage 3 it is freed before the step."""
    standing = run.sharding.zero == 3 or not run.sharding.engine
    return {
        **resident(run),
        Device.GRADIENTS: gradients(run),
        Device.BUCKETS: buckets(run) if standing else 0.0,
        Device.STEP: step_bytes(run),
    }


def tower_forward(run: Run) -> Terms:
    """Before the decoder, one tower after the other. ZeRO-3 gathers their layers and fetches ahead as it does in the
    decoder; under FSDP the root unit holds the towers whole."""
    most = max((needed for needed, _ in encoder.peaks(run)), default=0.0)
    if not most:
        return {}
    return {
        **forward.base(run, "last layer"),
        Device.GRADIENTS: earlier(run),
        Device.TOWERS: encoder.kept(run) + most,
        Device.WEIGHT_CASTS: encoder.casts(run),
    }


def tower_backward(run: Run) -> Terms:
    """The first layer of it, with everything kept and the decoder's gradients; or the last, with all gradients but that
    of an embedding of its own, which comes after the towers'."""
    most = max((needed for _, needed in encoder.peaks(run)), default=0.0)
    if not most:
        return {}
    standing = {**forward.base(run, "embedding"), Device.ACTIVATIONS: checkpoint(run)}
    waiting = run.work.accumulation == 1 and not run.sharding.engine and not run.sharding.fsdp
    each = run.sizes.gradient if waiting else 0.0
    there = accumulated(run) - (each * run.embedding if run.trains_embedding and not run.arch.tied else 0.0)
    first = {**standing, Device.TOWERS: encoder.kept(run) + most,
             Device.GRADIENTS: there - each * run.trained_in_towers}  # fmt: skip
    last = {**standing, Device.TOWERS: most, Device.GRADIENTS: there}
    return max(first, last, key=lambda terms: sum(terms.values()))


MOMENTS: dict[str, Callable[[Run], Terms]] = {
    "loading": loading,
    "tower forward": tower_forward,
    "last layer forward": forward.last_layer,
    "loss forward": forward.loss_forward,
    "loss backward": forward.loss_backward,
    "output layer gradient": vocabulary.head_gradient,
    "last layer backward": backward.last_layer,
    "first layer backward": backward.first_layer,
    "tower backward": tower_backward,
    "embedding gradient": vocabulary.embedding_gradient,
    "optimizer step": step,
    "evaluation": forward.evaluation,
}
