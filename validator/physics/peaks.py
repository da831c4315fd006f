"""The phases of a run at which device memory can peak: loading, forward pass, loss, backward pass, optimizer step,
evaluation. Each phase is a function that returns bytes by term on the worst device."""

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
from validator.physics.rollout import rollout_terms
from validator.physics.saved_inputs import saved_per_layer_inputs
from validator.physics.training_step import LayerPosition, TrainingStep
from validator.physics.workload import DDP, ZERO_3

DeviceTerms = Mapping[DeviceTerm, float]


@lru_cache(maxsize=64)
def resident_terms(step: TrainingStep) -> DeviceTerms:
    """Bytes by term that stay on the device through the whole step. Gradients are not included."""
    return {
        DeviceTerm.WEIGHTS: weights.base_weights_on_device(step),
        DeviceTerm.ADAPTER: weights.adapter_weights_on_device(step),
        DeviceTerm.OPTIMIZER: optimizer_states_on_device(step),
        DeviceTerm.REFERENCE: weights.reference_weights_on_device(step),
    }


def terms_of_both_passes(step: TrainingStep, where: weights.GatherPoint) -> DeviceTerms:
    """Bytes by term that are on the device during the whole forward and backward pass. `where` is the point of the step
    for which gathered weights are counted."""
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
    """Bytes of autocast's half-precision copies of all trained matrices, except the output layer's."""
    return weights.layer_autocast_copies(step) + towers.tower_autocast_copies(step)


def last_layer_forward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term at the end of the last layer's forward pass, when autocast's copies of all layers exist. The
    results of `gate` and `up` and a matrix that quantization or DoRA rebuilds are included."""
    layer = step.layers[-1][1]
    results = 2 * step.sizes.compute * step.tokens * feed_forward_width(step, layer)
    return {
        **terms_of_both_passes(step, "last layer"),
        **saved_by_all_layers(step),
        DeviceTerm.GRADIENTS: optimizer.gradients_before_backward(step),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(step),
        DeviceTerm.LAST_MLP_OUTPUT: results if step.is_recomputed(layer) else 0.0,
        DeviceTerm.DEQUANTIZED: weights.dequantized_bytes(step, layer.linears) + weights.dora_norm_bytes(step, layer),
    }


def _hidden_state_bytes(step: TrainingStep) -> float:
    """Bytes of the outputs of all layers, which a value head requests from the model, with or without checkpointing
    (trl, modeling_value_head.py). Outputs that already count as checkpoints are subtracted. Zero without a value
    head."""
    if not step.work.value_head:
        return 0.0
    checkpoints = saved_by_all_layers(step).get(DeviceTerm.CHECKPOINTS, 0.0)
    return max((step.arch.layers + 1) * layer_checkpoint_bytes(step) - checkpoints, 0.0)


def loss_forward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term when the loss is computed.

    In preference stages the loss is computed outside the model's autocast context, after the weight copies are freed.
    Memory peaks at that moment, or earlier, when the weight copies and the raw logits exist together; the larger of the
    two moments counts."""
    terms = {
        **terms_of_both_passes(step, "loss"),
        **saved_by_all_layers(step),
        DeviceTerm.GRADIENTS: optimizer.gradients_before_backward(step),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(step) + weights.lm_head_autocast_copy(step),
        DeviceTerm.HIDDEN_STATES: _hidden_state_bytes(step),
        DeviceTerm.HEAD: lm_head.lm_head_saved_bytes(step),
        DeviceTerm.LOGITS: lm_head.logits_forward(step),
    }
    if not step.work.needs_full_logits or step.checkpointing == "off":
        return terms
    late_terms = {**terms, DeviceTerm.WEIGHT_CASTS: weights.lm_head_autocast_copy(step)}
    return largest([late_terms, {**terms, DeviceTerm.LOGITS: lm_head.logits_in_model_forward(step)}])


def loss_backward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in the loss's backward pass. Without activation checkpointing every layer still holds the
    half-precision weights that its backward pass will use."""
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
    """Bytes by term while an evaluation runs; empty if the run does not evaluate."""
    if not step.work.eval_batch:
        return {}
    return {
        **terms_of_both_passes(step, "loss"),
        DeviceTerm.WEIGHT_CASTS: _autocast_copies(step) + weights.lm_head_autocast_copy(step),
        DeviceTerm.LOGITS: lm_head.logits_evaluation(step),
    }


class BackwardPoint(NamedTuple):
    """A moment in one layer's backward pass at which memory can peak. `activations`: bytes of saved activations and
    temporary tensors at that moment."""

    activations: float
    done: float  # elements whose gradients exist
    pending: float  # elements whose half-precision copies are still held
    being_computed: float  # elements of the weight gradient that is being made
    rebuilt: float = 0.0  # bytes of a matrix that is rebuilt for its product


def _backward_points(step: TrainingStep, layer: DecoderLayer, activations: LayerActivations) -> Iterator[BackwardPoint]:
    """Yield the candidate peaks of one layer's backward pass, in order: (1) feed-forward half, with all activations
    saved; (2) gradients of gate and up, whose activations are freed; (3) attention half; (4) end of the layer.
    `activations` are the activations that the layer saves."""
    down, attention = element_count(layer.down), element_count(layer.attention)
    ffn = layer.matrices - attention
    # Of the two tensors that hold the matrices of all experts, the larger one. A slice has a gradient of the whole
    # tensor's size, zero outside the slice, which is added to the sums of both tensors.
    experts = layer.experts * 2 // 3 if step.arch.ffn.gated else layer.experts // 2
    experts += layer.experts if step.work.experts == "sliced" else 0
    products = step.tokens * step.sizes.compute * feed_forward_width(step, layer)
    yield BackwardPoint(
        activations.total + activations.ffn_workspace,
        down,
        layer.matrices - down,
        0,
        weights.dequantized_bytes(step, layer.down),
    )
    yield BackwardPoint(
        activations.total - products, down, layer.matrices - down, 0, weights.dequantized_bytes(step, layer.readers)
    )
    matrix = max(weights.largest_matrix((*layer.down, *layer.readers)), experts)
    yield BackwardPoint(activations.attention, ffn, attention, matrix)
    yield BackwardPoint(activations.attention, ffn, attention, 0, weights.dequantized_bytes(step, layer.attention))
    yield BackwardPoint(activations.attention + activations.attention_workspace, ffn, attention, 0)
    yield BackwardPoint(0.0, layer.elements, 0, weights.largest_matrix(layer.attention))


def _end_of_recomputation(step: TrainingStep, layer: DecoderLayer, activations: LayerActivations) -> BackwardPoint:
    """Return the moment at which a layer's forward pass has been computed again, when all its activations are saved.
    The input of the last adapter in the adapter's precision, and the matrices that quantization or DoRA rebuilds, are
    included. `activations`: the activations that the layer saves."""
    work = step.work
    linears = [each for each in layer.down if step.for_layer(layer).is_adapted(each) and work.method == "lora"]
    size = 4.0 if work.precision == "amp" and not work.quant_bits else 0.0
    inputs = size * step.tokens * max((each.inputs for each in linears), default=0)
    matrices = weights.dora_norm_bytes(step, layer) + weights.dequantized_bytes(step, layer.linears)
    return BackwardPoint(activations.total + inputs, 0, layer.matrices, 0, matrices)


class RestOfModel(NamedTuple):
    """Memory of everything but the layer whose backward pass runs. `standing`: bytes by term that exist during both
    passes. `checkpoints`, `activations` and `autocast_copies`: bytes that the decoder's layers still hold."""

    standing: DeviceTerms
    done: float  # elements of base weights whose gradients exist
    checkpoints: float = 0.0
    activations: float = 0.0
    autocast_copies: float = 0.0


def _terms_at(step: TrainingStep, layer: DecoderLayer, point: BackwardPoint, rest: RestOfModel) -> DeviceTerms:
    share = weights.autocast_elements(step, layer) / layer.matrices
    return {
        **rest.standing,
        DeviceTerm.CHECKPOINTS: rest.checkpoints,
        DeviceTerm.ACTIVATIONS: point.activations + rest.activations,
        DeviceTerm.WEIGHT_CASTS: rest.autocast_copies + 2.0 * share * point.pending,
        DeviceTerm.GRADIENTS: optimizer.gradients_so_far(step, rest.done + point.done),
        DeviceTerm.NEW_GRADIENT: optimizer.gradient_being_computed(step, layer, point.being_computed),
        DeviceTerm.DEQUANTIZED: point.rebuilt,
    }


def _largest_terms_in_layer(
    step: TrainingStep, layer: DecoderLayer, rest: RestOfModel, recomputes: bool
) -> DeviceTerms:
    """Bytes by term at the moment of this layer's backward pass that needs most memory. `rest`: memory of everything
    but this layer. `recomputes`: the layer's forward pass is computed again before its backward pass."""
    activations = layer_activations(step, layer)
    points = [
        *_backward_points(step, layer, activations),
        *([_end_of_recomputation(step, layer, activations)] if recomputes else []),
    ]
    return largest(_terms_at(step, layer, point, rest) for point in points)


def last_layer_backward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term during the backward pass of the layer where the backward pass begins. All activation checkpoints
    exist then, but few gradients."""
    return max(
        (_last_layer_terms(step, each) for each in step.first_in_backward), key=lambda terms: sum(terms.values())
    )


def _last_layer_terms(step: TrainingStep, place: LayerPosition) -> DeviceTerms:
    """Bytes by term during the backward pass of the layer at `place`, after the backward pass has finished the layers
    between it and the last layer."""
    saved = saved_by_all_layers(step)
    checkpoints, activations = saved.get(DeviceTerm.CHECKPOINTS, 0.0), saved.get(DeviceTerm.ACTIVATIONS, 0.0)
    elements = place.elements + (step.lm_head_elements if step.work.method == "full" else 0)
    rest = RestOfModel(terms_of_both_passes(step, "last layer"), elements, checkpoints, activations)
    if step.is_recomputed(place.layer):
        freed = 0.0 if step.has_mixed_adapters else place.layers_between * layer_checkpoint_bytes(step)
        return _largest_terms_in_layer(
            step, place.layer, rest._replace(checkpoints=checkpoints - freed), recomputes=True
        )
    copies = weights.layer_autocast_copies(step) - 2.0 * weights.autocast_elements(step, place.layer)
    others = activations - layer_activations(step, place.layer).total
    return _largest_terms_in_layer(
        step, place.layer, rest._replace(activations=others, autocast_copies=copies), recomputes=True
    )


def first_layer_backward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term during the backward pass of the layer where the backward pass ends. One activation checkpoint is
    left then, and nearly all gradients exist."""
    return max(
        (_first_layer_terms(step, each) for each in step.last_in_backward), key=lambda terms: sum(terms.values())
    )


def _first_layer_terms(step: TrainingStep, place: LayerPosition) -> DeviceTerms:
    """Bytes by term during the backward pass of the layer at `place`, while the layers between it and the first layer
    still wait for their backward pass."""
    layer, recomputes = place.layer, step.is_recomputed(place.layer)
    done = sum(number * kind.elements for number, kind in step.backward_layers) - layer.elements - place.elements
    done += step.lm_head_elements if step.work.method == "full" else 0
    checkpoints = (
        (1 + place.layers_between) * layer_checkpoint_bytes(step) + checkpoints_held_by_fsdp(step)
        if recomputes
        else 0.0
    )
    return _largest_terms_in_layer(
        step, layer, RestOfModel(terms_of_both_passes(step, "first layer"), done, checkpoints), recomputes=recomputes
    )


def lm_head_gradient(step: TrainingStep) -> DeviceTerms:
    """Bytes by term while the output layer's weight gradient is computed; empty if the output layer does not train, and
    for fused losses and value heads.

    First the gradient exists in compute precision beside the gradient of the logits. Then, after the weight's copy and
    the logits' gradient are freed, it exists in its own precision, too. The larger moment counts."""
    sizes = step.sizes
    if step.work.loss == "fused" or step.work.value_head or not step.trains_head:
        return {}
    terms, size, logits = (
        loss_backward(step),
        min(sizes.gradient, sizes.modules_to_save),
        logits_in_compute_precision(step),
    )
    if step.work.precision != "amp":
        return {**terms, DeviceTerm.LOGITS: logits, DeviceTerm.NEW_GRADIENT: size * step.lm_head_elements}
    if logits + weights.lm_head_autocast_copy(step) > size * step.lm_head_elements:
        return {**terms, DeviceTerm.LOGITS: logits, DeviceTerm.NEW_GRADIENT: sizes.compute * step.lm_head_elements}
    return {
        **terms,
        DeviceTerm.LOGITS: 0.0,
        DeviceTerm.WEIGHT_CASTS: terms[DeviceTerm.WEIGHT_CASTS] - weights.lm_head_autocast_copy(step),
        DeviceTerm.NEW_GRADIENT: (sizes.compute + size) * step.lm_head_elements,
    }


def embedding_gradient(step: TrainingStep) -> DeviceTerms:
    """Bytes by term while the gradient of the embedding, which is dense, is computed. If the gradient is added to an
    earlier gradient, both exist.

    If the embedding is tied to the output layer, the output layer's gradient exists as well, and in half precision also
    the sum of the two gradients. The sum needs a tensor of its own, because the output layer's gradient (except from a
    fused loss) is a transposed view that cannot be added to in place."""
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
    """True if every device holds the whole model before its weights are sharded. This happens in two cases.

    First: under ZeRO-3, a model that is quantized while it loads, or unpacked from a quantized checkpoint, skips
    ZeRO-3's partitioned initialization (transformers, modeling_utils.py, get_init_context, and
    quantizer_bnb_4bit.update_device_map), and DeepSpeed's engine moves the whole model to the device. Second: FSDP
    starts after loading, when the model is on the device."""
    sharding, work = step.sharding, step.work
    is_quantized = (work.quant_bits > 0 and not work.quant_grouped) or work.dequantized_at_load
    return (step.strategy == ZERO_3 and is_quantized) or (step.strategy.fsdp and not sharding.sharded_load)


def loading_phase(step: TrainingStep) -> DeviceTerms:
    """Bytes by term while the model loads; empty for runs other than two kinds. First, runs in which every device holds
    the whole model before the weights are sharded. Second, full fine-tuning under ZeRO below stage 3, where the weights
    are raised to fp32 on the device before the engine takes them."""
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
    """Bytes by term during the optimizer step. ZeRO-3's reduce bucket still exists then. Below stage 3 the bucket is
    freed before the step."""
    has_bucket = step.strategy == ZERO_3 or not step.strategy.deepspeed
    return {
        **resident_terms(step),
        DeviceTerm.GRADIENTS: optimizer.gradient_bytes(step),
        DeviceTerm.BUCKETS: optimizer.communication_bucket_bytes(step) if has_bucket else 0.0,
        DeviceTerm.OPTIMIZER_WORKSPACE: optimizer_workspace(step),
    }


def generation_phase(step: TrainingStep) -> DeviceTerms:
    """Bytes by term while the policy of a PPO run generates answers; empty in other stages."""
    if not step.work.rollout:
        return {}
    return {**resident_terms(step), **rollout_terms(step)}


def tower_forward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in the forward pass of the towers, which run one after the other before the decoder. ZeRO-3 gathers
    and prefetches tower layers as in the decoder. Under FSDP the root unit holds whole towers. Empty for models without
    towers."""
    peak = max((needed for needed, _ in towers.tower_peaks(step)), default=0.0)
    if not peak:
        return {}
    return {
        **terms_of_both_passes(step, "last layer"),
        DeviceTerm.GRADIENTS: optimizer.gradients_before_backward(step),
        DeviceTerm.TOWERS: towers.tower_saved_bytes(step) + peak,
        DeviceTerm.WEIGHT_CASTS: towers.tower_autocast_copies(step),
    }


def tower_backward(step: TrainingStep) -> DeviceTerms:
    """Bytes by term in the towers' backward pass; empty for models without towers. The larger of two moments counts:
    the beginning (all tower activations, decoder gradients) or the end (few activations, all gradients). The gradient
    of an untied embedding comes later."""
    peak = max((needed for _, needed in towers.tower_peaks(step)), default=0.0)
    if not peak:
        return {}
    common = {**terms_of_both_passes(step, "embedding"), DeviceTerm.ACTIVATIONS: layer_checkpoint_bytes(step)}
    is_unreduced = step.work.accumulation == 1 and step.strategy == DDP
    each = step.sizes.gradient if is_unreduced else 0.0
    gradients = optimizer.accumulated_gradient_bytes(step) - (
        each * step.embedding_elements if step.trains_embedding and not step.arch.tied else 0.0
    )
    first = {**common, DeviceTerm.TOWERS: towers.tower_saved_bytes(step) + peak,
             DeviceTerm.GRADIENTS: gradients - each * step.trained_tower_elements}  # fmt: skip
    last = {**common, DeviceTerm.TOWERS: peak, DeviceTerm.GRADIENTS: gradients}
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
    "generation": generation_phase,
    "evaluation": evaluation_phase,
}
