"""The phases of a run at which device memory can peak: loading, forward pass, loss, backward pass, optimizer step,
evaluation. Each gives bytes by term on the worst device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from validator.physics import attention, lm_head, optimizer, towers, weights
from validator.physics.activation_checkpointing import (
    LayerActivations,
    checkpoints_held_by_fsdp,
    layer_activations,
    layer_checkpoint_bytes,
    saved_by_all_layers,
)
from validator.physics.architecture import element_count
from validator.physics.attention import attention_mask_bytes
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import DeviceTerm, largest
from validator.physics.feed_forward import feed_forward_width
from validator.physics.lm_head import logits_in_compute_precision
from validator.physics.optimizer import optimizer_states_on_device, optimizer_workspace
from validator.physics.saved_inputs import saved_per_layer_inputs
from validator.physics.training_step import LayerPosition, TrainingStep
from validator.physics.workload import DDP, ZERO_3

DeviceTerms = Mapping[DeviceTerm, float]


@lru_cache(maxsize=64)
def resident_terms(step: TrainingStep) -> DeviceTerms:
    """Bytes that stay on the device through the whole step, without gradients."""
    return {
        DeviceTerm.WEIGHTS: weights.base_weights_on_device(step),
        DeviceTerm.ADAPTER: weights.adapter_weights_on_device(step),
        DeviceTerm.OPTIMIZER: optimizer_states_on_device(step),
        DeviceTerm.REFERENCE: weights.reference_weights_on_device(step),
    }


def terms_of_both_passes(step: TrainingStep, where: weights.GatherPoint) -> DeviceTerms:
    """Bytes that are on the device during the whole forward and backward pass."""
    return {
        **resident_terms(step),
        DeviceTerm.GATHERED_WEIGHTS: weights.gathered_weight_bytes(step, where),
        DeviceTerm.BUCKETS: optimizer.communication_bucket_bytes(step),
        DeviceTerm.TOWER_INPUTS: towers.tower_input_bytes(step),
        DeviceTerm.TOWERS: towers.tower_saved_bytes(step)
        + towers.frozen_layer_activations(step)
        + attention.cross_attention_state_bytes(step),
        DeviceTerm.LAYER_INPUTS: saved_per_layer_inputs(step),
        DeviceTerm.MASK: attention_mask_bytes(step) + attention.cross_attention_mask_bytes(step),
    }


def _autocast_copies(step: TrainingStep) -> float:
    """Bytes of autocast's copies of all trained matrices but the output layer's."""
    return weights.layer_autocast_copies(step) + towers.tower_autocast_copies(step)


def last_layer_forward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term at the end of the layers, when autocast's copies of all of them exist, with the results of `gate`
    and `up` and a dequantized matrix."""
    layer = step.backward_layers[-1][1]
    results = 2 * step.sizes.compute * step.tokens * feed_forward_width(step, layer)
    return {
        **terms_of_both_passes(step, "last layer"),
        **saved_by_all_layers(step),
        DeviceTerm.GRADIENTS: optimizer.gradients_before_backward(step),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(step),
        DeviceTerm.LAST_MLP_OUTPUT: results if step.checkpointing != "off" else 0.0,
        DeviceTerm.DEQUANTIZED: weights.dequantized_bytes(step, layer.linears) + weights.dora_norm_bytes(step, layer),
    }


def _hidden_state_bytes(step: TrainingStep) -> float:
    """Bytes of the results of all layers, which a value head asks for, checkpointed or not (trl,
    modeling_value_head.py)."""
    if not step.work.value_head:
        return 0.0
    counted = saved_by_all_layers(step).get(DeviceTerm.CHECKPOINTS, 0.0)
    return max((step.arch.layers + 1) * layer_checkpoint_bytes(step) - counted, 0.0)


def loss_forward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term when the loss is computed. In preference stages the loss is computed outside the model's autocast
    context, after the weight copies are freed; the peak is then, or earlier, when the copies and the raw logits exist
    together."""
    inside = {
        **terms_of_both_passes(step, "loss"),
        **saved_by_all_layers(step),
        DeviceTerm.GRADIENTS: optimizer.gradients_before_backward(step),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(step) + weights.lm_head_autocast_copy(step),
        DeviceTerm.HIDDEN_STATES: _hidden_state_bytes(step),
        DeviceTerm.HEAD: lm_head.lm_head_saved_bytes(step),
        DeviceTerm.LOGITS: lm_head.logits_forward(step),
    }
    if not step.work.needs_full_logits or step.checkpointing == "off":
        return inside
    outside = {**inside, DeviceTerm.WEIGHT_CASTS: weights.lm_head_autocast_copy(step)}
    return largest([outside, {**inside, DeviceTerm.LOGITS: lm_head.logits_in_model_forward(step)}])


def loss_backward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in the loss's backward pass. Without checkpointing every layer still holds the half-precision
    weights that its backward pass will use."""
    layer_copies = _autocast_copies(step) if step.checkpointing == "off" else 0.0
    return {
        **terms_of_both_passes(step, "loss"),
        **saved_by_all_layers(step),
        DeviceTerm.GRADIENTS: optimizer.gradients_before_backward(step),
        DeviceTerm.WEIGHT_CASTS: layer_copies + weights.lm_head_autocast_copy(step),
        DeviceTerm.HEAD: lm_head.lm_head_saved_bytes(step),
        DeviceTerm.LOGITS: lm_head.logits_backward(step),
    }


def evaluation_phase(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in an evaluation; empty if there is none."""
    if not step.work.eval_batch:
        return {}
    return {
        **terms_of_both_passes(step, "loss"),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(step) + weights.lm_head_autocast_copy(step),
        DeviceTerm.LOGITS: lm_head.logits_evaluation(step),
    }


class BackwardPoint(NamedTuple):
    """A critical point in a layer's backward pass."""

    activations: float
    done: float  # elements whose gradients exist
    pending: float  # elements whose half-precision copies are still held
    being_computed: float  # elements of the weight gradient that is being made
    rebuilt: float = 0.0  # bytes of a matrix that is rebuilt for its product


def _backward_points(step: TrainingStep, layer: DecoderLayer, inside: LayerActivations) -> Iterator[BackwardPoint]:
    """Yield the candidate peaks of one layer's backward pass, in order: (1) feed-forward half, all activations saved;
    (2) gradients of gate and up, whose activations are freed; (3) attention half; (4) end of the layer."""
    down, attention = element_count(layer.down), element_count(layer.attention)
    forward = layer.matrices - attention
    # Of the two tensors that hold the matrices of all experts, the larger one
    experts = layer.experts * 2 // 3 if step.arch.ffn.gated else layer.experts // 2
    inner = step.tokens * step.sizes.compute * feed_forward_width(step, layer)
    yield BackwardPoint(
        inside.total + inside.ffn_workspace, down, layer.matrices - down, 0, weights.dequantized_bytes(step, layer.down)
    )
    yield BackwardPoint(
        inside.total - inner, down, layer.matrices - down, 0, weights.dequantized_bytes(step, layer.readers)
    )
    widest = max(weights.largest_matrix((*layer.down, *layer.readers)), experts)
    yield BackwardPoint(inside.attention, forward, attention, widest)
    yield BackwardPoint(inside.attention, forward, attention, 0, weights.dequantized_bytes(step, layer.attention))
    yield BackwardPoint(inside.attention + inside.attention_workspace, forward, attention, 0)
    yield BackwardPoint(0.0, layer.elements, 0, weights.largest_matrix(layer.attention))


def _end_of_recomputation(step: TrainingStep, layer: DecoderLayer, inside: LayerActivations) -> BackwardPoint:
    """Return the end of a layer's recomputed forward pass, with all activations saved: also the last adapter's input in
    its own precision, and the matrices that DoRA makes."""
    work = step.work
    adapted = [each for each in layer.down if each.role in work.adapter.targets and work.method == "lora"]
    cast = 4.0 if work.precision == "amp" and not work.quant_bits else 0.0
    entering = cast * step.tokens * max((each.inputs for each in adapted), default=0)
    rebuilt = weights.dora_norm_bytes(step, layer) + weights.dequantized_bytes(step, layer.linears)
    return BackwardPoint(inside.total + entering, 0, layer.matrices, 0, rebuilt)


class RestOfModel(NamedTuple):
    """Bytes on the device beside the layer at work, and `done` elements."""

    standing: DeviceTerms
    done: float  # elements of base weights whose gradients exist
    checkpoints: float = 0.0
    activations: float = 0.0
    autocast_copies: float = 0.0


def _terms_at(step: TrainingStep, layer: DecoderLayer, point: BackwardPoint, around: RestOfModel) -> DeviceTerms:
    trained = weights.autocast_elements(step, layer) / layer.matrices
    return {
        **around.standing,
        DeviceTerm.CHECKPOINTS: around.checkpoints,
        DeviceTerm.ACTIVATIONS: point.activations + around.activations,
        DeviceTerm.WEIGHT_CASTS: around.autocast_copies + 2.0 * trained * point.pending,
        DeviceTerm.GRADIENTS: optimizer.gradients_so_far(step, around.done + point.done),
        DeviceTerm.NEW_GRADIENT: optimizer.gradient_being_computed(step, layer, point.being_computed),
        DeviceTerm.DEQUANTIZED: point.rebuilt,
    }


def _largest_terms_in_layer(
    step: TrainingStep, layer: DecoderLayer, around: RestOfModel, recomputes: bool
) -> DeviceTerms:
    """Bytes by term at the point of this layer's backward pass that needs most."""
    inside = layer_activations(step, layer)
    points = [
        *_backward_points(step, layer, inside),
        *([_end_of_recomputation(step, layer, inside)] if recomputes else []),
    ]
    return largest(_terms_at(step, layer, point, around) for point in points)


def last_layer_backward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in the layer where the backward pass begins: all checkpoints, few gradients."""
    return max(
        (_last_layer_terms(step, each) for each in step.first_in_backward), key=lambda terms: sum(terms.values())
    )


def _last_layer_terms(step: TrainingStep, place: LayerPosition) -> DeviceTerms:
    """Bytes by term in a layer once the backward pass is through with the layers after it."""
    others = sum(saved_by_all_layers(step).values())
    trains = place.elements + (step.lm_head_elements if step.work.method == "full" else 0)
    around = RestOfModel(terms_of_both_passes(step, "last layer"), trains)
    if step.checkpointing != "off":
        left = others - place.layers_between * layer_checkpoint_bytes(step)
        return _largest_terms_in_layer(step, place.layer, around._replace(checkpoints=left), recomputes=True)
    activations = others - layer_activations(step, place.layer).total
    casts = weights.layer_autocast_copies(step) - 2.0 * weights.autocast_elements(step, place.layer)
    return _largest_terms_in_layer(
        step, place.layer, around._replace(activations=activations, autocast_copies=casts), recomputes=True
    )


def first_layer_backward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in the layer where the backward pass ends: one checkpoint, nearly all gradients."""
    return max(
        (_first_layer_terms(step, each) for each in step.last_in_backward), key=lambda terms: sum(terms.values())
    )


def _first_layer_terms(step: TrainingStep, place: LayerPosition) -> DeviceTerms:
    """Bytes by term in a layer while the layers before it still wait for the backward pass."""
    layer, checkpointed = place.layer, step.checkpointing != "off"
    done = sum(number * kind.elements for number, kind in step.backward_layers) - layer.elements - place.elements
    done += step.lm_head_elements if step.work.method == "full" else 0
    checkpoints = (
        (1 + place.layers_between) * layer_checkpoint_bytes(step) + checkpoints_held_by_fsdp(step)
        if checkpointed
        else 0.0
    )
    return _largest_terms_in_layer(
        step, layer, RestOfModel(terms_of_both_passes(step, "first layer"), done, checkpoints), recomputes=checkpointed
    )


def lm_head_gradient(step: TrainingStep) -> DeviceTerms:
    """Bytes by term when the output layer's weight gradient is made: in compute precision beside the gradient of the
    logits, then in its own precision, when the half-precision weight and the logits' gradient are gone."""
    sizes = step.sizes
    if step.work.loss == "fused" or step.work.value_head or not step.trains_head:
        return {}
    before, own, logits = (
        loss_backward(step),
        min(sizes.gradient, sizes.modules_to_save),
        logits_in_compute_precision(step),
    )
    if step.work.precision != "amp":
        return {**before, DeviceTerm.LOGITS: logits, DeviceTerm.NEW_GRADIENT: own * step.lm_head_elements}
    if logits + weights.lm_head_autocast_copy(step) > own * step.lm_head_elements:
        return {**before, DeviceTerm.LOGITS: logits, DeviceTerm.NEW_GRADIENT: sizes.compute * step.lm_head_elements}
    return {
        **before,
        DeviceTerm.LOGITS: 0.0,
        DeviceTerm.WEIGHT_CASTS: before[DeviceTerm.WEIGHT_CASTS] - weights.lm_head_autocast_copy(step),
        DeviceTerm.NEW_GRADIENT: (sizes.compute + own) * step.lm_head_elements,
    }


def embedding_gradient(step: TrainingStep) -> DeviceTerms:
    """Bytes by term when the embedding's dense gradient is made. With accumulation an earlier gradient exists beside
    it. If the embedding is tied, so does the output layer's gradient and, in half precision, the sum of both: the
    output layer's is a transposed view (not from a fused loss), to which nothing can be added in place."""
    sizes, work = step.sizes, step.work
    copies = int(work.accumulation > 1 or step.strategy.has_gradient_buffer)
    if step.arch.tied and work.method == "full" and not work.value_head:
        copies += 1 if sizes.autocast_copies or work.loss == "fused" else 2
    each = min(sizes.gradient, sizes.modules_to_save)
    return {
        **terms_of_both_passes(step, "embedding"),
        DeviceTerm.GRADIENTS: optimizer.accumulated_gradient_bytes(step),
        DeviceTerm.NEW_GRADIENT: copies * each * step.embedding_elements if step.trains_embedding else 0.0,
        DeviceTerm.TOWERS: 0.0,
        DeviceTerm.ACTIVATIONS: layer_checkpoint_bytes(step),
    }


def _holds_full_model_first(step: TrainingStep) -> bool:
    """True if every device holds all weights before they are spread: a model that is quantized while it loads, or
    unpacked from a quantized checkpoint, skips ZeRO-3's partitioned initialization (transformers, modeling_utils.py,
    get_init_context, and quantizer_bnb_4bit.update_device_map), after which DeepSpeed's engine moves it to the device;
    and FSDP that starts after loading finds the model on the device."""
    sharding, work = step.sharding, step.work
    quantized = (work.quant_bits > 0 and not work.quant_grouped) or work.dequantized_at_load
    return (step.strategy == ZERO_3 and quantized) or (step.strategy.fsdp and not sharding.sharded_load)


def loading_phase(step: TrainingStep) -> DeviceTerms:
    """Bytes by term while loading. A full fine-tune under ZeRO below stage 3 converts its weights to fp32 on the device
    before the engine shards them."""
    if _holds_full_model_first(step):
        reference = weights.reference_weight_bytes(step) if step.strategy.fsdp else 0.0
        loaded = (
            step.work.base_bytes * step.parameters
            if step.work.dequantized_at_load
            else weights.loaded_weight_bytes(step)
        )
        return {DeviceTerm.WEIGHTS: loaded, DeviceTerm.REFERENCE: reference}
    if step.work.method != "full" or step.work.precision != "engine" or step.strategy == ZERO_3:
        return {}
    return {DeviceTerm.WEIGHTS: 4.0 * step.parameters, DeviceTerm.REFERENCE: weights.reference_weights_on_device(step)}


def optimizer_step(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in the optimizer step. ZeRO-3's reduce bucket stays; below stage 3 it is freed before the step."""
    standing = step.strategy == ZERO_3 or not step.strategy.deepspeed
    return {
        **resident_terms(step),
        DeviceTerm.GRADIENTS: optimizer.gradient_bytes(step),
        DeviceTerm.BUCKETS: optimizer.communication_bucket_bytes(step) if standing else 0.0,
        DeviceTerm.OPTIMIZER_WORKSPACE: optimizer_workspace(step),
    }


def tower_forward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term while the towers run, one after the other, before the decoder. ZeRO-3 gathers and prefetches their
    layers like the decoder's; under FSDP the root unit holds the towers whole."""
    most = max((needed for needed, _ in towers.tower_peaks(step)), default=0.0)
    if not most:
        return {}
    return {
        **terms_of_both_passes(step, "last layer"),
        DeviceTerm.GRADIENTS: optimizer.gradients_before_backward(step),
        DeviceTerm.TOWERS: towers.tower_saved_bytes(step) + most,
        DeviceTerm.WEIGHT_CASTS: towers.tower_autocast_copies(step),
    }


def tower_backward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in the towers' backward pass: the larger of its beginning (all tower activations, decoder
    gradients) and its end (few activations, all gradients). The gradient of an untied embedding comes later."""
    most = max((needed for _, needed in towers.tower_peaks(step)), default=0.0)
    if not most:
        return {}
    standing = {**terms_of_both_passes(step, "embedding"), DeviceTerm.ACTIVATIONS: layer_checkpoint_bytes(step)}
    waiting = step.work.accumulation == 1 and step.strategy == DDP
    each = step.sizes.gradient if waiting else 0.0
    gradients = optimizer.accumulated_gradient_bytes(step) - (
        each * step.embedding_elements if step.trains_embedding and not step.arch.tied else 0.0
    )
    first = {**standing, DeviceTerm.TOWERS: towers.tower_saved_bytes(step) + most,
             DeviceTerm.GRADIENTS: gradients - each * step.trained_tower_elements}  # fmt: skip
    last = {**standing, DeviceTerm.TOWERS: most, DeviceTerm.GRADIENTS: gradients}
    return largest([first, last])


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
