"""Memory of vision and audio towers on the worst device: saved activations, workspace and inputs.

A layer of a tower is that of a decoder without a vocabulary, so the same formulas hold for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from validator.physics.activation_checkpointing import LayerActivations, layer_activations, layer_checkpoint_bytes
from validator.physics.architecture import (
    Architecture,
    AttentionShape,
    FeedForwardShape,
    Linear,
    Tower,
    projector_elements,
    tower_elements,
)
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.saved_inputs import saved_by_norm
from validator.physics.training_step import TrainingStep
from validator.physics.workload import Adapter, TowerWorkload


@lru_cache(maxsize=64)
def tower_layer(tower: Tower) -> DecoderLayer:
    """A layer of the tower."""
    return DecoderLayer(tower.linears, 0, tower.vectors)


# Processors hand over fp32 numbers.
_INPUT_ELEMENT_SIZE = 4.0


class TowerStep(NamedTuple):
    """A tower at work: `run` is that of its layers."""

    run: TrainingStep
    tower: Tower
    encoding: TowerWorkload
    block: DecoderLayer

    @property
    def inside(self) -> bool:
        """Whether gradients go into the layers."""
        roles = {linear.role for linear in (*self.tower.linears, *self.tower.outside)}
        asked = self.encoding
        first = asked.loose and self.tower.loose_first
        asks = asked.trains or asked.trainable_layers > 0 or asked.watched or first
        return asks or bool(roles.intersection(asked.targets))

    @property
    def reached(self) -> bool:
        """Whether gradients go as far as the projector."""
        roles = {linear.role for linear in self.tower.projector}
        return self.inside or self.encoding.projector or bool(roles.intersection(self.encoding.targets))


@lru_cache(maxsize=64)
def tower_steps(run: TrainingStep) -> tuple[TowerStep, ...]:
    """The towers of a run."""
    return tuple(TowerStep(_tower_training_step(run, *pair), *pair, tower_layer(pair[0])) for pair in run.encoded)


def _tower_training_step(run: TrainingStep, tower: Tower, encoding: TowerWorkload) -> TrainingStep:
    """That of the layers: of a decoder that reads tower tokens."""
    fused = any(linear.role == "qkv" for linear in tower.linears)
    attn = AttentionShape(tower.heads, tower.heads, tower.head_dim, fused=fused, head_norms=tower.head_norms)
    arch = Architecture(
        tower.hidden,
        tower.layers,
        0,
        attn,
        FeedForwardShape(tower.width, tower.gated, tower.quick),
        norm="rms" if tower.rms else "layer",
    )
    trains = not run.adapts and (encoding.trains or encoding.trainable_layers > 0)
    work = run.work._replace(
        method="full" if trains else "lora",
        adapter=run.work.adapter._replace(targets=encoding.targets, full_embedding=False, full_head=False),
        length=max(encoding.tokens, 1),
        padded=False,
        fused_kernels=False,
        encodings=(),
    )
    return TrainingStep(arch, work, _hidden_state_element_size(run, tower, trains))


def _hidden_state_element_size(run: TrainingStep, tower: Tower, trains: bool) -> float:
    """Bytes of hidden states between the layers: under autocast fp32 where a norm makes them, or embeddings that
    train, or modules that hand results back in the precision of a norm's result (`Run.turned`)."""
    if run.work.precision != "amp":
        return run.sizes.compute
    turned = run.turned and not tower.rms
    return 4.0 if turned or tower.fp32 == "always" or (trains and tower.fp32 == "trained") else 2.0


def tower_input_bytes(run: TrainingStep) -> float:
    """What the processors hand over: of all micro batches of an optimizer step, which the Trainer fetches together
    (transformers, trainer.py, get_batch_samples)."""
    each = sum(encoder.run.tokens * encoder.tower.inputs for encoder in tower_steps(run))
    return _INPUT_ELEMENT_SIZE * each * run.work.accumulation


@lru_cache(maxsize=64)
def tower_saved_bytes(run: TrainingStep) -> float:
    """What towers and projectors keep for their gradients."""
    return sum(
        _layers_saved_bytes(encoder) + _projector_saved_bytes(encoder)
        for encoder in tower_steps(run)
        if encoder.reached
    )


def _layers_saved_bytes(encoder: TowerStep) -> float:
    """Their inputs; everything where nothing is recomputed, as in layers that do not train."""
    if not encoder.inside:
        return 0.0
    asked, layers = encoder.encoding, encoder.tower.layers
    usual = encoder.run.work.checkpointing != "off" and (asked.trains or bool(asked.targets))
    recomputed = usual if asked.recomputed is None else asked.recomputed
    return layers * (layer_checkpoint_bytes(encoder.run) if recomputed else _tower_layer_activations(encoder).total)


def _tower_layer_activations(encoder: TowerStep) -> LayerActivations:
    """One of its layers; where that makes cosines and sines of its own, attention keeps both in fp32, as wide as a
    head, for queries and again for keys (modeling_qwen2_5_omni.py, apply_rotary_pos_emb_vision)."""
    one = layer_activations(encoder.run, encoder.block)
    angles = 4 * 4.0 * encoder.tower.head_dim * encoder.run.tokens if encoder.tower.angles else 0.0
    return one._replace(attention=one.attention + angles)


def _projector_saved_bytes(encoder: TowerStep) -> float:
    """Of the projector and of the linear modules beside the layers: the norm's input, the inputs of what trains, and
    those of activations, which are the results of all but the last."""
    run, tower = encoder.run, encoder.tower
    tokens = run.tokens / tower.merge
    projector = _linears_saved_bytes(encoder, tower.projector, encoder.encoding.projector)
    outside = _linears_saved_bytes(encoder, tower.outside, encoder.encoding.trains) if encoder.inside else 0.0
    norm = saved_by_norm(run, tower.hidden * tower.merge, run.sizes.residual)
    return tokens * (projector + outside + norm)


def _linears_saved_bytes(encoder: TowerStep, linears: tuple[Linear, ...], trains: bool) -> float:
    """Bytes per token of linear modules in a row."""
    run = encoder.run
    inputs = sum(each.number * each.inputs for each in linears if trains or each.role in encoder.encoding.targets)
    results = sum(each.number * each.outputs for each in linears[:-1])
    return run.sizes.compute * (inputs + results)


@lru_cache(maxsize=64)
def frozen_layer_activations(run: TrainingStep) -> float:
    """What the decoder's layers that freeze tuning leaves as they are keep for gradients on their way to towers:
    nothing recomputes them."""
    if run.work.method != "freeze" or not any(encoder.reached for encoder in tower_steps(run)):
        return 0.0
    work = run.work._replace(method="lora", adapter=Adapter(targets=()), checkpointing="off")
    through, frozen = TrainingStep(run.arch, work), run.arch.layers - run.work.trainable_layers
    return frozen * layer_activations(through, through.layers[-1][1]).total


def tower_autocast_copies(run: TrainingStep) -> float:
    """Autocast's half-precision copies of trained towers."""
    trained = [encoder for encoder in tower_steps(run) if run.sizes.casts]
    towers = sum(tower_elements(encoder.tower) for encoder in trained if encoder.encoding.trains)
    return 2.0 * (towers + sum(projector_elements(each.tower) for each in trained if each.encoding.projector))


def tower_peaks(run: TrainingStep) -> Iterator[tuple[float, float]]:
    """Of each tower, what the layer at work needs in the forward and in the backward pass."""
    for encoder in tower_steps(run):
        inside = _tower_layer_activations(encoder)
        collected = encoder.tower.layers * layer_checkpoint_bytes(encoder.run) if encoder.tower.collects else 0.0
        yield inside.total + collected, _layer_backward_peak(inside) if encoder.inside else 0.0


def _layer_backward_peak(inside: LayerActivations) -> float:
    return max(inside.total + inside.ffn_peak, inside.attention + inside.attention_peak)
