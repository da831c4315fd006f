"""Memory of vision and audio towers on the worst device: saved activations, workspace and inputs.

A tower's layer is a decoder layer without a vocabulary, so the same formulas apply."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from validator.physics.activation_checkpointing import LayerActivations, layer_activations, layer_checkpoint_bytes
from validator.physics.architecture import Architecture, AttentionShape, FeedForwardShape, Linear, Tower
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.saved_inputs import saved_by_norm
from validator.physics.training_step import TrainingStep
from validator.physics.workload import Adapter, TowerWorkload

# Processors hand over fp32 numbers.
_INPUT_ELEMENT_SIZE = 4.0


class TowerStep(NamedTuple):
    """A tower at work; `step` describes its layers."""

    step: TrainingStep
    tower: Tower
    workload: TowerWorkload
    layer: DecoderLayer

    @property
    def backward_in_layers(self) -> bool:
        """True if gradients go into the layers."""
        roles = {linear.role for linear in (*self.tower.linears, *self.tower.outside)}
        workload = self.workload
        first = workload.never_frozen and self.tower.never_frozen_first
        asks = workload.trains or workload.trainable_layers > 0 or workload.input_requires_grad or first
        return asks or bool(roles.intersection(workload.targets))

    @property
    def backward_in_projector(self) -> bool:
        """True if gradients go as far as the projector."""
        roles = {linear.role for linear in self.tower.projector}
        return self.backward_in_layers or self.workload.projector or bool(roles.intersection(self.workload.targets))


@lru_cache(maxsize=64)
def tower_steps(step: TrainingStep) -> tuple[TowerStep, ...]:
    """Return the towers of a run."""
    return tuple(
        TowerStep(_tower_training_step(step, *pair), *pair, DecoderLayer(pair[0].linears, 0, pair[0].vectors))
        for pair in step.towers
    )


def _tower_training_step(step: TrainingStep, tower: Tower, encoding: TowerWorkload) -> TrainingStep:
    """Describe the tower's layers as a decoder over tower tokens, so that the decoder's formulas apply."""
    fused = any(linear.role == "qkv" for linear in tower.linears)
    attn = AttentionShape(tower.heads, tower.heads, tower.head_dim, fused_qkv=fused, qk_norm=tower.qk_norm)
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
    return TrainingStep(arch, work, _hidden_state_element_size(step, tower, trains))


def _hidden_state_element_size(step: TrainingStep, tower: Tower, trains: bool) -> float:
    """Bytes per element of hidden states between the layers. Under autocast they are fp32 if norms, trained embeddings,
    or linear modules that return the dtype of their input make them (`TrainingStep.linear_returns_input_dtype`)."""
    if step.work.precision != "amp":
        return step.sizes.compute
    turned = step.linear_returns_input_dtype and not tower.rms
    return 4.0 if turned or tower.fp32 == "always" or (trains and tower.fp32 == "trained") else 2.0


def tower_input_bytes(step: TrainingStep) -> float:
    """Bytes of tower inputs of all micro batches of an optimizer step, which the Trainer fetches together
    (transformers, trainer.py, get_batch_samples)."""
    each = sum(encoder.step.tokens * encoder.tower.input_values for encoder in tower_steps(step))
    return _INPUT_ELEMENT_SIZE * each * step.work.accumulation


@lru_cache(maxsize=64)
def tower_saved_bytes(step: TrainingStep) -> float:
    """Bytes that towers and projectors save for backward."""
    return sum(
        _layers_saved_bytes(encoder) + _projector_saved_bytes(encoder)
        for encoder in tower_steps(step)
        if encoder.backward_in_projector
    )


def _layers_saved_bytes(encoder: TowerStep) -> float:
    """Bytes that a tower's layers save: their inputs, or everything if nothing is recomputed, as in layers that do not
    train."""
    if not encoder.backward_in_layers:
        return 0.0
    workload, layers = encoder.workload, encoder.tower.layers
    usual = encoder.step.work.checkpointing != "off" and (workload.trains or bool(workload.targets))
    recomputed = usual if workload.recomputed is None else workload.recomputed
    return layers * (layer_checkpoint_bytes(encoder.step) if recomputed else _tower_layer_activations(encoder).total)


def _tower_layer_activations(encoder: TowerStep) -> LayerActivations:
    """Bytes that one layer of a tower saves. If layers compute cosines and sines of their own, attention saves both in
    fp32, as wide as a head, for queries and again for keys (modeling_qwen2_5_omni.py, apply_rotary_pos_emb_vision)."""
    one = layer_activations(encoder.step, encoder.layer)
    angles = 4 * 4.0 * encoder.tower.head_dim * encoder.step.tokens if encoder.tower.own_rotary_tables else 0.0
    return one._replace(attention=one.attention + angles)


def _projector_saved_bytes(encoder: TowerStep) -> float:
    """Bytes that the projector and the linear modules outside the layers save for backward: the input of the norm, of
    every trained linear module, and of every activation function."""
    step, tower = encoder.step, encoder.tower
    tokens = step.tokens / tower.merge
    projector = _linears_saved_bytes(encoder, tower.projector, encoder.workload.projector)
    outside = (
        _linears_saved_bytes(encoder, tower.outside, encoder.workload.trains) if encoder.backward_in_layers else 0.0
    )
    norm = saved_by_norm(step, tower.hidden * tower.merge, step.sizes.residual)
    return tokens * (projector + outside + norm)


def _linears_saved_bytes(encoder: TowerStep, linears: tuple[Linear, ...], trains: bool) -> float:
    """Bytes per token of linear modules in a row."""
    step = encoder.step
    inputs = sum(each.number * each.inputs for each in linears if trains or each.role in encoder.workload.targets)
    results = sum(each.number * each.outputs for each in linears[:-1])
    return step.sizes.compute * (inputs + results)


@lru_cache(maxsize=64)
def frozen_layer_activations(step: TrainingStep) -> float:
    """Bytes that the decoder's frozen layers save under freeze tuning for the gradients that pass through them to the
    towers; nothing recomputes them."""
    if step.work.method != "freeze" or not any(encoder.backward_in_projector for encoder in tower_steps(step)):
        return 0.0
    work = step.work._replace(method="lora", adapter=Adapter(targets=()), checkpointing="off")
    through, frozen = TrainingStep(step.arch, work), step.arch.layers - step.work.trainable_layers
    return frozen * layer_activations(through, through.layers[-1][1]).total


def tower_autocast_copies(step: TrainingStep) -> float:
    """Bytes of autocast's half-precision copies of trained towers."""
    trained = [encoder for encoder in tower_steps(step) if step.sizes.autocast_copies]
    towers = sum(encoder.tower.elements for encoder in trained if encoder.workload.trains)
    return 2.0 * (towers + sum(each.tower.projector_elements for each in trained if each.workload.projector))


def tower_peaks(step: TrainingStep) -> Iterator[tuple[float, float]]:
    """Yield for each tower the bytes that the layer at work needs in the forward and in the backward pass."""
    for encoder in tower_steps(step):
        inside = _tower_layer_activations(encoder)
        collected = (
            encoder.tower.layers * layer_checkpoint_bytes(encoder.step) if encoder.tower.output_hidden_states else 0.0
        )
        backward = max(inside.total + inside.ffn_workspace, inside.attention + inside.attention_workspace)
        yield inside.total + collected, backward if encoder.backward_in_layers else 0.0
