"""Bytes of activations that all layers save between the forward and the backward pass, with or without activation
checkpointing, and of checkpoints that FSDP holds or that move to main memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from validator.physics.attention import first_half_backward_workspace, first_half_saved_bytes
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import DeviceTerm
from validator.physics.feed_forward import feed_forward_backward_workspace, feed_forward_saved_bytes
from validator.physics.training_step import TrainingStep


class LayerActivations(NamedTuple):
    """Bytes kept by the two halves of a layer, and the largest transients of their backward passes."""

    attention: float
    ffn: float
    attention_workspace: float
    ffn_workspace: float

    @property
    def total(self) -> float:
        return self.attention + self.ffn


def _oft_rotation_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes of the orthogonal matrices of one layer's adapters, with two powers of the series that computes them, in
    fp32."""
    if step.work.method != "oft":
        return 0.0
    adapted = sum(linear.inputs for linear in layer.by_role(*step.work.adapter.targets))
    return 3 * 4.0 * step.work.adapter.block_size * adapted


@lru_cache(maxsize=128)
def layer_activations(step: TrainingStep, layer: DecoderLayer) -> LayerActivations:
    """Bytes that one layer saves for its backward pass, and the workspace of that pass."""
    step = step.for_layer(layer)
    return LayerActivations(
        attention=first_half_saved_bytes(step, layer) + _oft_rotation_bytes(step, layer),
        ffn=feed_forward_saved_bytes(step, layer),
        attention_workspace=first_half_backward_workspace(step, layer),
        ffn_workspace=feed_forward_backward_workspace(step, layer),
    )


def layer_checkpoint_bytes(step: TrainingStep) -> float:
    """Bytes of one layer's checkpoint: the layer's input, in the precision of the residual stream."""
    return step.sizes.residual * step.tokens * step.arch.hidden


@lru_cache(maxsize=64)
def saved_by_all_layers(step: TrainingStep) -> Mapping[DeviceTerm, float]:
    """Bytes that all layers save, by term. If checkpoints move to main memory, two are on the device at a time."""
    match step.checkpointing:
        case "layer":
            return {
                DeviceTerm.CHECKPOINTS: sum(number for number, _ in step.backward_layers) * layer_checkpoint_bytes(step)
            }
        case "offloaded":
            return {DeviceTerm.CHECKPOINTS: 2 * layer_checkpoint_bytes(step)}
    return {
        DeviceTerm.ACTIVATIONS: sum(
            number * layer_activations(step, layer).total for number, layer in step.backward_layers
        )
    }


def checkpoints_held_by_fsdp(step: TrainingStep) -> float:
    """Bytes of checkpoints, and of their gradients, that FSDP keeps to the end of the backward pass.

    The hook that frees a unit without gradients keeps the graph nodes of its inputs (torch
    distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook); under reentrant checkpointing these
    are the checkpoints. By then all gradients exist except those of the first two layers."""
    if not (step.strategy.fsdp and step.trains_adapter) or step.checkpointing != "layer":
        return 0.0
    return layer_checkpoint_bytes(step) * (2 * step.arch.layers - 3)


def checkpoints_held_on_host(step: TrainingStep) -> float:
    """Bytes of activation checkpoints that all devices of a node have moved to main memory."""
    if step.checkpointing != "offloaded":
        return 0.0
    return step.sharding.devices_per_node * layer_checkpoint_bytes(step) * step.arch.layers


def checkpoints_moved_to_host(step: TrainingStep) -> float:
    """Bytes of checkpoints that leave the device and come back in one step."""
    if step.checkpointing != "offloaded":
        return 0.0
    return (
        2.0 * step.work.accumulation * sum(number for number, _ in step.backward_layers) * layer_checkpoint_bytes(step)
    )
