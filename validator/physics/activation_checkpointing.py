"""Bytes of activations that the decoder's layers save between the forward and the backward pass, with or without
activation checkpointing. Also bytes of the checkpoints that FSDP holds until the backward pass ends, and of the
checkpoints that are offloaded to main memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from validator.physics.architecture import Architecture
from validator.physics.attention import first_half_backward_workspace, first_half_saved_bytes
from validator.physics.decoder_layers import DecoderLayer
from validator.physics.estimate import DeviceTerm
from validator.physics.feed_forward import feed_forward_backward_workspace, feed_forward_saved_bytes
from validator.physics.training_step import TrainingStep, training_step
from validator.physics.workload import Workload


class LayerActivations(NamedTuple):
    """Bytes that the two halves of a layer (attention, feed-forward block) save for the backward pass, and the
    temporary bytes that the backward pass of each half needs at most."""

    attention: float
    ffn: float
    attention_workspace: float
    ffn_workspace: float

    @property
    def total(self) -> float:
        return self.attention + self.ffn


def _oft_rotation_bytes(step: TrainingStep, layer: DecoderLayer) -> float:
    """Bytes of the orthogonal matrices that OFT adapters build in one layer, in fp32: the matrices themselves, and two
    powers of the series from which they are computed. Zero for other methods."""
    if step.work.method != "oft":
        return 0.0
    adapted = sum(linear.inputs for linear in layer.by_role(*step.work.adapter.targets))
    return 3 * 4.0 * step.work.adapter.block_size * adapted


@lru_cache(maxsize=128)
def layer_activations(step: TrainingStep, layer: DecoderLayer) -> LayerActivations:
    """Return the bytes that each half of a layer (attention, feed-forward block) saves for the backward pass, and the
    temporary bytes of the backward pass of each half."""
    step = step.for_layer(layer)
    return LayerActivations(
        attention=first_half_saved_bytes(step, layer) + _oft_rotation_bytes(step, layer),
        ffn=feed_forward_saved_bytes(step, layer),
        attention_workspace=first_half_backward_workspace(step, layer),
        ffn_workspace=feed_forward_backward_workspace(step, layer),
    )


def layer_checkpoint_bytes(step: TrainingStep) -> float:
    """Bytes of one layer's activation checkpoint, per micro batch. The checkpoint is the layer's input, in the
    precision of the residual stream."""
    return step.sizes.residual * step.tokens * step.arch.hidden


@lru_cache(maxsize=64)
def saved_by_all_layers(step: TrainingStep) -> Mapping[DeviceTerm, float]:
    """Return the bytes that the decoder's layers save for the backward pass, by memory term: activation checkpoints of
    the layers that are computed again, and all activations of the others. If checkpoints are offloaded to main memory,
    only two of them are on the device at a time."""
    passed = step.work.passed_layers * frozen_layer_bytes(step) if step.work.passed_layers else 0.0
    checkpointed = sum(number for number, layer in step.backward_layers if step.is_recomputed(layer))
    whole = [pair for pair in step.backward_layers if not step.is_recomputed(pair[1])]
    saved = {}
    if checkpointed:
        number = 2 if step.checkpointing == "offloaded" else checkpointed
        saved[DeviceTerm.CHECKPOINTS] = number * layer_checkpoint_bytes(step)
    if whole or not checkpointed or passed:
        trained = sum(number * layer_activations(step, layer).total for number, layer in whole)
        saved[DeviceTerm.ACTIVATIONS] = trained + passed
    return saved


def layers_kept_whole(arch: Architecture, workload: Workload) -> int:
    """Number of decoder layers that keep all their activations for the backward pass, although activation checkpointing
    is on, because no adapter reaches them."""
    step = training_step(arch, workload)
    if step.checkpointing == "off":
        return 0
    return sum(number for number, layer in step.backward_layers if not step.is_recomputed(layer))


def frozen_layer_bytes(step: TrainingStep) -> float:
    """Bytes of the activations of a frozen layer that gradients pass under freeze tuning. Frozen layers are not
    recomputed (LLaMA-Factory, model_utils/checkpointing.py)."""
    return layer_activations(step.frozen, step.frozen.layers[-1][1]).total


def checkpoints_held_by_fsdp(step: TrainingStep) -> float:
    """Bytes of activation checkpoints, and of the gradients of these checkpoints, that FSDP keeps on the device until
    the backward pass ends. Zero unless an adapter trains under FSDP with checkpoints on the device.

    The hook by which FSDP frees a unit without gradients keeps the graph nodes of the unit's inputs (torch
    distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook). Under reentrant checkpointing these
    inputs are the checkpoints. When the backward pass ends, all checkpoints have gradients, except for the checkpoints
    of the first two layers."""
    if not (step.strategy.fsdp and step.trains_adapter) or step.checkpointing != "layer":
        return 0.0
    return layer_checkpoint_bytes(step) * (2 * step.arch.layers - 3)


def checkpoints_held_on_host(step: TrainingStep) -> float:
    """Bytes of activation checkpoints that all devices of a node have offloaded to main memory. Zero if checkpoints
    stay on the device."""
    if step.checkpointing != "offloaded":
        return 0.0
    return step.sharding.devices_per_node * layer_checkpoint_bytes(step) * step.arch.layers


def checkpoints_moved_to_host(step: TrainingStep) -> float:
    """Bytes of activation checkpoints that one device copies to main memory and back during one optimizer step. Each
    micro batch copies one checkpoint per layer in both directions."""
    if step.checkpointing != "offloaded":
        return 0.0
    return (
        2.0 * step.work.accumulation * sum(number for number, _ in step.backward_layers) * layer_checkpoint_bytes(step)
    )
