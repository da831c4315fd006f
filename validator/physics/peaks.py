"""The phases of a run at which device memory can peak: loading, forward pass, loss, backward pass, optimizer step,
evaluation. Each gives bytes by term on the worst device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from validator.physics import attention, lm_head, towers
from validator.physics.activation_checkpointing import (
    LayerActivations,
    checkpoints_held_by_fsdp,
    layer_activations,
    layer_checkpoint_bytes,
    saved_by_all_layers,
)
from validator.physics.attention import attention_mask_bytes
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import DeviceTerm
from validator.physics.feed_forward import feed_forward_width
from validator.physics.gradients import (
    accumulated_gradient_bytes,
    communication_bucket_bytes,
    gradient_being_computed,
    gradient_bytes,
    gradients_before_backward,
    gradients_so_far,
)
from validator.physics.lm_head import logits_in_compute_precision
from validator.physics.optimizer import optimizer_states_on_device, optimizer_workspace
from validator.physics.saved_inputs import saved_per_layer_inputs
from validator.physics.training_step import LayerPosition, TrainingStep
from validator.physics.weights import (
    GatherPoint,
    adapter_weights_on_device,
    autocast_elements,
    base_weights_on_device,
    dequantized_bytes,
    dora_norm_bytes,
    gathered_weight_bytes,
    largest_matrix,
    layer_autocast_copies,
    lm_head_autocast_copy,
    loaded_weight_bytes,
    matrix_elements,
    reference_weight_bytes,
    reference_weights_on_device,
)

DeviceTerms = Mapping[DeviceTerm, float]


@lru_cache(maxsize=64)
def resident_terms(run: TrainingStep) -> DeviceTerms:
    """What stays on the device through the whole step, gradients apart."""
    return {
        DeviceTerm.WEIGHTS: base_weights_on_device(run),
        DeviceTerm.ADAPTER: adapter_weights_on_device(run),
        DeviceTerm.OPTIMIZER: optimizer_states_on_device(run),
        DeviceTerm.REFERENCE: reference_weights_on_device(run),
    }


def terms_of_both_passes(run: TrainingStep, where: GatherPoint) -> DeviceTerms:
    """What is there during the whole forward and backward pass."""
    return {
        **resident_terms(run),
        DeviceTerm.GATHER: gathered_weight_bytes(run, where),
        DeviceTerm.BUCKETS: communication_bucket_bytes(run),
        DeviceTerm.PIXELS: towers.tower_input_bytes(run),
        DeviceTerm.TOWERS: towers.tower_saved_bytes(run)
        + towers.frozen_layer_activations(run)
        + attention.cross_attention_state_bytes(run),
        DeviceTerm.LAYER_INPUTS: saved_per_layer_inputs(run),
        DeviceTerm.MASK: attention_mask_bytes(run) + attention.cross_attention_mask_bytes(run),
    }


def _autocast_copies(run: TrainingStep) -> float:
    """Autocast's copies of all trained matrices but the output layer's."""
    return layer_autocast_copies(run) + towers.tower_autocast_copies(run)


def last_layer_forward(run: TrainingStep) -> DeviceTerms:
    """The end of the layers, when autocast's copies of all of them are there: results of `gate` and `up`, and a matrix
    that is rebuilt."""
    block = run.visited[-1][1]
    results = 2 * run.sizes.compute * run.tokens * feed_forward_width(run, block)
    return {
        **terms_of_both_passes(run, "last layer"),
        **saved_by_all_layers(run),
        DeviceTerm.GRADIENTS: gradients_before_backward(run),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(run),
        DeviceTerm.RESULTS: results if run.checkpointing != "off" else 0.0,
        DeviceTerm.REBUILT: dequantized_bytes(run, block.linears) + dora_norm_bytes(run, block),
    }


def _hidden_state_bytes(run: TrainingStep) -> float:
    """A value head asks the model for the results of all its layers, checkpointed or not (trl,
    modeling_value_head.py)."""
    if not run.work.value_head:
        return 0.0
    counted = saved_by_all_layers(run).get(DeviceTerm.CHECKPOINTS, 0.0)
    return max((run.arch.layers + 1) * layer_checkpoint_bytes(run) - counted, 0.0)


def loss_forward(run: TrainingStep) -> DeviceTerms:
    """Preference stages make their loss when autocast's copies of checkpointed layers have gone: there it is that, or
    the logits alone beside the copies."""
    inside = {
        **terms_of_both_passes(run, "loss"),
        **saved_by_all_layers(run),
        DeviceTerm.GRADIENTS: gradients_before_backward(run),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(run) + lm_head_autocast_copy(run),
        DeviceTerm.HIDDEN_STATES: _hidden_state_bytes(run),
        DeviceTerm.HEAD: lm_head.lm_head_saved_bytes(run),
        DeviceTerm.LOGITS: lm_head.logits_forward(run),
    }
    if not run.work.needs_full_logits or run.checkpointing == "off":
        return inside
    outside = {**inside, DeviceTerm.WEIGHT_CASTS: lm_head_autocast_copy(run)}
    return max(
        outside,
        {**inside, DeviceTerm.LOGITS: lm_head.logits_in_model_forward(run)},
        key=lambda terms: sum(terms.values()),
    )


def loss_backward(run: TrainingStep) -> DeviceTerms:
    """Without checkpoints every layer still holds the half-precision weights that its backward pass will use."""
    inside = _autocast_copies(run) if run.checkpointing == "off" else 0.0
    return {
        **terms_of_both_passes(run, "loss"),
        **saved_by_all_layers(run),
        DeviceTerm.GRADIENTS: gradients_before_backward(run),
        DeviceTerm.WEIGHT_CASTS: inside + lm_head_autocast_copy(run),
        DeviceTerm.HEAD: lm_head.lm_head_saved_bytes(run),
        DeviceTerm.LOGITS: lm_head.logits_backward(run),
    }


def evaluation_phase(run: TrainingStep) -> DeviceTerms:
    if not run.work.eval_batch:
        return {}
    return {
        **terms_of_both_passes(run, "loss"),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(run) + lm_head_autocast_copy(run),
        DeviceTerm.LOGITS: lm_head.logits_evaluation(run),
    }


class BackwardPoint(NamedTuple):
    """A critical point in a layer's backward pass."""

    activations: float
    done: float  # elements whose gradients exist
    pending: float  # elements whose half-precision copies are still held
    in_flight: float  # elements of the weight gradient that is being made
    rebuilt: float = 0.0  # bytes of a matrix that is rebuilt for its product


def _backward_points(run: TrainingStep, block: DecoderLayer, inside: LayerActivations) -> Iterator[BackwardPoint]:
    """The feed-forward half with everything kept; its inputs' products, when the gradients of its inner results have
    taken the place of these; the attention half; the end."""
    down, attention = matrix_elements(block.down), matrix_elements(block.attention)
    forward = block.matrices - attention
    inner = run.tokens * run.sizes.compute * feed_forward_width(run, block)
    yield BackwardPoint(
        inside.total + inside.ffn_peak, down, block.matrices - down, 0, dequantized_bytes(run, block.down)
    )
    yield BackwardPoint(inside.total - inner, down, block.matrices - down, 0, dequantized_bytes(run, block.readers))
    widest = max(largest_matrix((*block.down, *block.readers)), _largest_expert_tensor(run, block))
    yield BackwardPoint(inside.attention, forward, attention, widest)
    yield BackwardPoint(inside.attention, forward, attention, 0, dequantized_bytes(run, block.attention))
    yield BackwardPoint(inside.attention + inside.attention_peak, forward, attention, 0)
    yield BackwardPoint(0.0, block.elements, 0, largest_matrix(block.attention))


def _largest_expert_tensor(run: TrainingStep, block: DecoderLayer) -> int:
    """Elements of the larger of the two tensors that hold the matrices of all experts."""
    return block.experts * 2 // 3 if run.arch.ffn.gated else block.experts // 2


def _end_of_recomputation(run: TrainingStep, block: DecoderLayer, inside: LayerActivations) -> BackwardPoint:
    """The end of the forward pass of a layer, with everything kept: the last adapter's input in its own precision, and
    the matrices that DoRA rebuilds."""
    work = run.work
    adapted = [each for each in block.down if each.role in work.adapter.targets and work.method == "lora"]
    cast = 4.0 if work.precision == "amp" and not work.quant_bits else 0.0
    entering = cast * run.tokens * max((each.inputs for each in adapted), default=0)
    rebuilt = dora_norm_bytes(run, block) + dequantized_bytes(run, block.linears)
    return BackwardPoint(inside.total + entering, 0, block.matrices, 0, rebuilt)


class RestOfModel(NamedTuple):
    """What is there beside the layer at work. Bytes, but for `done`."""

    standing: DeviceTerms
    done: float  # elements of base weights whose gradients exist
    checkpoints: float = 0.0
    activations: float = 0.0
    casts: float = 0.0


def _terms_at(run: TrainingStep, block: DecoderLayer, point: BackwardPoint, around: RestOfModel) -> DeviceTerms:
    trained = autocast_elements(run, block) / block.matrices
    return {
        **around.standing,
        DeviceTerm.CHECKPOINTS: around.checkpoints,
        DeviceTerm.ACTIVATIONS: point.activations + around.activations,
        DeviceTerm.WEIGHT_CASTS: around.casts + 2.0 * trained * point.pending,
        DeviceTerm.GRADIENTS: gradients_so_far(run, around.done + point.done),
        DeviceTerm.NEW_GRADIENT: gradient_being_computed(run, block, point.in_flight),
        DeviceTerm.REBUILT: point.rebuilt,
    }


def _largest_terms_in_layer(
    run: TrainingStep, block: DecoderLayer, around: RestOfModel, recomputes: bool
) -> DeviceTerms:
    """At the point of this layer's backward pass that needs most."""
    inside = layer_activations(run, block)
    points = [
        *_backward_points(run, block, inside),
        *([_end_of_recomputation(run, block, inside)] if recomputes else []),
    ]
    return max((_terms_at(run, block, point, around) for point in points), key=lambda terms: sum(terms.values()))


def last_layer_backward(run: TrainingStep) -> DeviceTerms:
    """The first layer of the backward pass: all checkpoints, few gradients."""
    return max((_last_layer_terms(run, each) for each in run.closing), key=lambda terms: sum(terms.values()))


def _last_layer_terms(run: TrainingStep, place: LayerPosition) -> DeviceTerms:
    """A layer when the backward pass has left those between it and the last."""
    others = sum(saved_by_all_layers(run).values())
    trains = place.elements + (run.head if run.work.method == "full" else 0)
    around = RestOfModel(terms_of_both_passes(run, "last layer"), trains)
    if run.checkpointing != "off":
        left = others - place.passed * layer_checkpoint_bytes(run)
        return _largest_terms_in_layer(run, place.block, around._replace(checkpoints=left), recomputes=True)
    activations = others - layer_activations(run, place.block).total
    casts = layer_autocast_copies(run) - 2.0 * autocast_elements(run, place.block)
    return _largest_terms_in_layer(
        run, place.block, around._replace(activations=activations, casts=casts), recomputes=True
    )


def first_layer_backward(run: TrainingStep) -> DeviceTerms:
    """The last layer of the backward pass: one checkpoint, nearly all gradients."""
    return max((_first_layer_terms(run, each) for each in run.opening), key=lambda terms: sum(terms.values()))


def _first_layer_terms(run: TrainingStep, place: LayerPosition) -> DeviceTerms:
    """A layer when those between it and the first are left to the backward pass."""
    block, checkpointed = place.block, run.checkpointing != "off"
    done = sum(number * kind.elements for number, kind in run.visited) - block.elements - place.elements
    done += run.head if run.work.method == "full" else 0
    checkpoints = (
        (1 + place.passed) * layer_checkpoint_bytes(run) + checkpoints_held_by_fsdp(run) if checkpointed else 0.0
    )
    return _largest_terms_in_layer(
        run, block, RestOfModel(terms_of_both_passes(run, "first layer"), done, checkpoints), recomputes=checkpointed
    )


def lm_head_gradient(run: TrainingStep) -> DeviceTerms:
    """The output layer's weight gradient: in compute precision beside the gradient of the logits; then, when its weight
    and that have gone, in its own precision, too."""
    sizes = run.sizes
    if run.work.loss == "fused" or run.work.value_head or not run.trains_head:
        return {}
    before, own, logits = loss_backward(run), min(sizes.gradient, sizes.saved), logits_in_compute_precision(run)
    if run.work.precision != "amp":
        return {**before, DeviceTerm.LOGITS: logits, DeviceTerm.NEW_GRADIENT: own * run.head}
    if logits + lm_head_autocast_copy(run) > own * run.head:
        return {**before, DeviceTerm.LOGITS: logits, DeviceTerm.NEW_GRADIENT: sizes.compute * run.head}
    return {
        **before,
        DeviceTerm.LOGITS: 0.0,
        DeviceTerm.WEIGHT_CASTS: before[DeviceTerm.WEIGHT_CASTS] - lm_head_autocast_copy(run),
        DeviceTerm.NEW_GRADIENT: (sizes.compute + own) * run.head,
    }


def embedding_gradient(run: TrainingStep) -> DeviceTerms:
    """The embedding's gradient is dense. Added to an earlier one it exists beside it; tied, beside the output
    layer's, and in half precision beside their sum too: the output layer's is a transposed view, except from a fused
    loss, that cannot be added to in place."""
    sizes, work = run.sizes, run.work
    copies = int(work.accumulation > 1 or run.sharding.zero >= 2)
    if run.arch.tied and work.method == "full" and not work.value_head:
        copies += 1 if sizes.casts or work.loss == "fused" else 2
    each = min(sizes.gradient, sizes.saved)
    return {
        **terms_of_both_passes(run, "embedding"),
        DeviceTerm.GRADIENTS: accumulated_gradient_bytes(run),
        DeviceTerm.NEW_GRADIENT: copies * each * run.embedding if run.trains_embedding else 0.0,
        DeviceTerm.TOWERS: 0.0,
        DeviceTerm.ACTIVATIONS: layer_checkpoint_bytes(run),
    }


def _holds_full_model_first(run: TrainingStep) -> bool:
    """Whether every device holds all weights before they are spread: a model that is quantized while it loads, or
    unpacked from a quantized checkpoint, skips ZeRO-3's partitioned initialization (transformers, modeling_utils.py,
    get_init_context, and quantizer_bnb_4bit.update_device_map), after which DeepSpeed's engine moves it to the device;
    and FSDP that starts after loading finds the model on the device."""
    sharding, work = run.sharding, run.work
    quantized = (work.quant_bits > 0 and not work.quant_grouped) or work.unpacked
    return (sharding.zero == 3 and quantized) or (sharding.fsdp and not sharding.sharded_load)


def loading_phase(run: TrainingStep) -> DeviceTerms:
    """A full fine-tune under ZeRO below stage 3 raises its weights to fp32 on the device before the engine takes
    them."""
    if _holds_full_model_first(run):
        whole = reference_weight_bytes(run) if run.sharding.fsdp else 0.0
        weights = run.work.base_bytes * run.parameters if run.work.unpacked else loaded_weight_bytes(run)
        return {DeviceTerm.WEIGHTS: weights, DeviceTerm.REFERENCE: whole}
    if run.work.method != "full" or run.work.precision != "engine" or run.sharding.zero == 3:
        return {}
    return {DeviceTerm.WEIGHTS: 4.0 * run.parameters, DeviceTerm.REFERENCE: reference_weights_on_device(run)}


def optimizer_step(run: TrainingStep) -> DeviceTerms:
    """ZeRO-3's reduce bucket stands; below stage 3 it is freed before the step."""
    standing = run.sharding.zero == 3 or not run.sharding.engine
    return {
        **resident_terms(run),
        DeviceTerm.GRADIENTS: gradient_bytes(run),
        DeviceTerm.BUCKETS: communication_bucket_bytes(run) if standing else 0.0,
        DeviceTerm.STEP: optimizer_workspace(run),
    }


def tower_forward(run: TrainingStep) -> DeviceTerms:
    """Before the decoder, one tower after the other. ZeRO-3 gathers their layers and fetches ahead as it does in the
    decoder; under FSDP the root unit holds the towers whole."""
    most = max((needed for needed, _ in towers.tower_peaks(run)), default=0.0)
    if not most:
        return {}
    return {
        **terms_of_both_passes(run, "last layer"),
        DeviceTerm.GRADIENTS: gradients_before_backward(run),
        DeviceTerm.TOWERS: towers.tower_saved_bytes(run) + most,
        DeviceTerm.WEIGHT_CASTS: towers.tower_autocast_copies(run),
    }


def tower_backward(run: TrainingStep) -> DeviceTerms:
    """The first layer of it, with everything kept and the decoder's gradients; or the last, with all gradients but that
    of an embedding of its own, which comes after the towers'."""
    most = max((needed for _, needed in towers.tower_peaks(run)), default=0.0)
    if not most:
        return {}
    standing = {**terms_of_both_passes(run, "embedding"), DeviceTerm.ACTIVATIONS: layer_checkpoint_bytes(run)}
    waiting = run.work.accumulation == 1 and not run.sharding.engine and not run.sharding.fsdp
    each = run.sizes.gradient if waiting else 0.0
    there = accumulated_gradient_bytes(run) - (
        each * run.embedding if run.trains_embedding and not run.arch.tied else 0.0
    )
    first = {**standing, DeviceTerm.TOWERS: towers.tower_saved_bytes(run) + most,
             DeviceTerm.GRADIENTS: there - each * run.trained_in_towers}  # fmt: skip
    last = {**standing, DeviceTerm.TOWERS: most, DeviceTerm.GRADIENTS: there}
    return max(first, last, key=lambda terms: sum(terms.values()))


PHASES: dict[str, Callable[[TrainingStep], DeviceTerms]] = {
    "loading": loading_phase,
    "tower forward": tower_forward,
    "last layer forward": last_layer_forward,
    "loss forward": loss_forward,
    "loss backward": loss_backward,
    "output layer gradient": lm_head_gradient,
    "last layer backward": last_layer_backward,
    "first layer backward": first_layer_backward,
    "tower backward": tower_backward,
    "embedding gradient": embedding_gradient,
    "optimizer step": optimizer_step,
    "evaluation": evaluation_phase,
}
