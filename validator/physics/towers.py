"""Memory of vision and audio towers on the worst device: saved activations, workspace and inputs.

A tower's layers are described as the layers of a decoder without a vocabulary, so the decoder's formulas apply to
them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from validator.physics.activation_checkpointing import (
    LayerActivations,
    frozen_layer_bytes,
    layer_activations,
    layer_checkpoint_bytes,
)
from validator.physics.architecture import Architecture, AttentionShape, FeedForwardShape, Linear, Tower
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.saved_inputs import saved_by_norm
from validator.physics.training_step import TrainingStep
from validator.physics.workload import TowerWorkload

# Processors hand over fp32 numbers.
_INPUT_ELEMENT_SIZE = 4.0


class TowerStep(NamedTuple):
    """One tower of a run. `step` describes the tower's layers as a decoder, so that the decoder's formulas apply;
    `layer` is one of these layers."""

    step: TrainingStep
    tower: Tower
    workload: TowerWorkload
    layer: DecoderLayer

    @property
    def backward_in_layers(self) -> bool:
        """True if the backward pass visits the tower's layers."""
        roles = {linear.role for linear in (*self.tower.linears, *self.tower.outside)}
        workload = self.workload
        has_first = workload.never_frozen and self.tower.never_frozen_first
        is_needed = workload.trains or workload.trainable_layers > 0 or workload.input_requires_grad or has_first
        return is_needed or bool(roles.intersection(workload.targets))

    @property
    def backward_in_projector(self) -> bool:
        """True if the backward pass visits the tower's projector."""
        roles = {linear.role for linear in self.tower.projector}
        return self.backward_in_layers or self.workload.projector or bool(roles.intersection(self.workload.targets))


@lru_cache(maxsize=64)
def tower_steps(step: TrainingStep) -> tuple[TowerStep, ...]:
    """Return a TowerStep for each tower of the run."""
    return tuple(
        TowerStep(_tower_training_step(step, *pair), *pair, DecoderLayer(pair[0].linears, 0, pair[0].vectors))
        for pair in step.towers
    )


def _tower_training_step(step: TrainingStep, tower: Tower, encoding: TowerWorkload) -> TrainingStep:
    """Return a TrainingStep that describes the tower's layers as a decoder over tower tokens, so that the decoder's
    formulas apply. `encoding`: the tower's part of the workload."""
    fused = any(linear.role == "qkv" for linear in tower.linears)
    attn = AttentionShape(
        tower.heads,
        tower.heads,
        tower.head_dim,
        fused_qkv=fused,
        qk_norm=tower.qk_norm,
        unbatched=encoding.attends_to_batch,
    )
    arch = Architecture(
        tower.hidden,
        tower.layers,
        0,
        attn,
        FeedForwardShape(tower.width, tower.gated, tower.quick_gelu),
        norm="rms" if tower.rms else "layer",
    )
    trains = not step.trains_adapter and (encoding.trains or encoding.trainable_layers > 0)
    work = step.work._replace(
        method="full" if trains else "lora",
        adapter=step.work.adapter._replace(targets=encoding.targets, full_embedding=False, full_head=False),
        length=max(encoding.tokens, 1),
        pads_batches=False,
        fused_kernels=False,
        towers=(),
    )
    if encoding.attends_to_batch:
        sequences = work.micro_batch * work.sequences_per_sample
        work = work._replace(length=sequences * work.length, micro_batch=1, sequences_per_sample=1)
    return TrainingStep(arch, work, _hidden_state_element_size(step, tower, trains))


def _hidden_state_element_size(step: TrainingStep, tower: Tower, trains: bool) -> float:
    """Bytes per element of the hidden states between a tower's layers. `trains`: weights of the tower train. Under
    autocast hidden states are fp32 if a norm or a trained embedding makes them fp32, or if linear modules return the
    dtype of their input (`TrainingStep.linear_returns_input_dtype`)."""
    if step.work.precision != "amp":
        return step.sizes.compute
    is_raised = step.linear_returns_input_dtype and not tower.rms
    return 4.0 if is_raised or tower.fp32 == "always" or (trains and tower.fp32 == "trained") else 2.0


def tower_input_bytes(step: TrainingStep) -> float:
    """Bytes of the tower inputs (pixel values, audio features) of all micro batches of an optimizer step. The Trainer
    fetches these micro batches together (transformers, trainer.py, get_batch_samples)."""
    each = sum(encoder.step.tokens * encoder.tower.input_values for encoder in tower_steps(step))
    return _INPUT_ELEMENT_SIZE * each * step.work.accumulation


@lru_cache(maxsize=64)
def tower_saved_bytes(step: TrainingStep) -> float:
    """Bytes that towers and projectors save for backward, per micro batch. Towers without a backward pass save
    nothing."""
    return sum(
        _layers_saved_bytes(encoder) + _projector_saved_bytes(encoder)
        for encoder in tower_steps(step)
        if encoder.backward_in_projector
    )


def _layers_saved_bytes(encoder: TowerStep) -> float:
    """Bytes that a tower's layers save for backward: their inputs if the layers are recomputed, else all activations.
    Layers that do not train are not recomputed. Zero if the backward pass does not visit the layers."""
    if not encoder.backward_in_layers:
        return 0.0
    workload, layers = encoder.workload, encoder.tower.layers
    default = encoder.step.work.checkpointing != "off" and (workload.trains or bool(workload.targets))
    is_recomputed = default if workload.recomputed is None else workload.recomputed
    return layers * (layer_checkpoint_bytes(encoder.step) if is_recomputed else _tower_layer_activations(encoder).total)


def _tower_layer_activations(encoder: TowerStep) -> LayerActivations:
    """Return the activations of one layer of the tower. If each layer computes its own rotary cosines and sines,
    attention also saves both in fp32, as wide as a head, for queries and again for keys (modeling_qwen2_5_omni.py,
    apply_rotary_pos_emb_vision)."""
    activations = layer_activations(encoder.step, encoder.layer)
    angles = 4 * 4.0 * encoder.tower.head_dim * encoder.step.tokens if encoder.tower.own_rotary_tables else 0.0
    return activations._replace(attention=activations.attention + angles)


def _projector_saved_bytes(encoder: TowerStep) -> float:
    """Bytes that the projector and the linear modules outside the layers save for backward: the input of the norm, of
    every trained linear module, and of every activation function."""
    step, tower = encoder.step, encoder.tower
    tokens = step.tokens / tower.merge
    projector = _linears_saved_bytes(encoder, tower.projector, encoder.workload.projector)
    linears = (
        _linears_saved_bytes(encoder, tower.outside, encoder.workload.trains) if encoder.backward_in_layers else 0.0
    )
    norm = saved_by_norm(step, tower.hidden * tower.merge, step.sizes.residual)
    return tokens * (projector + linears + norm)


def _linears_saved_bytes(encoder: TowerStep, linears: tuple[Linear, ...], trains: bool) -> float:
    """Bytes per token that linear modules in a row save for backward: the inputs of the modules that train or have an
    adapter, and the results between the modules. `trains`: the weights of these modules train."""
    step = encoder.step
    inputs = sum(each.number * each.inputs for each in linears if trains or each.role in encoder.workload.targets)
    results = sum(each.number * each.outputs for each in linears[:-1])
    return step.sizes.compute * (inputs + results)


@lru_cache(maxsize=64)
def frozen_layer_activations(step: TrainingStep) -> float:
    """Bytes that the decoder's frozen layers save for backward under freeze tuning, because gradients pass through them
    on the way to towers. Frozen layers are not recomputed, so all their activations are saved. Zero for other
    methods."""
    if step.work.method != "freeze" or not any(encoder.backward_in_projector for encoder in tower_steps(step)):
        return 0.0
    return (step.arch.layers - step.work.trainable_layers - step.work.passed_layers) * frozen_layer_bytes(step)


def tower_autocast_copies(step: TrainingStep) -> float:
    """Bytes of autocast's half-precision copies of the weights of towers and projectors that train."""
    steps = [encoder for encoder in tower_steps(step) if step.sizes.autocast_copies]
    towers = sum(encoder.tower.elements for encoder in steps if encoder.workload.trains)
    return 2.0 * (towers + sum(each.tower.projector_elements for each in steps if each.workload.projector))


def tower_peaks(step: TrainingStep) -> Iterator[tuple[float, float]]:
    """Yield a pair for each tower: the bytes that one layer needs while it runs forward, and the bytes that one layer
    needs while it runs backward (0 without a backward pass)."""
    for encoder in tower_steps(step):
        activations = _tower_layer_activations(encoder)
        outputs = (
            encoder.tower.layers * layer_checkpoint_bytes(encoder.step) if encoder.tower.output_hidden_states else 0.0
        )
        backward = max(
            activations.total + activations.ffn_workspace, activations.attention + activations.attention_workspace
        )
        yield activations.total + outputs, backward if encoder.backward_in_layers else 0.0
