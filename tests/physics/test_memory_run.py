"""A model and what is asked of it, together."""

from __future__ import annotations

import pytest

from validator.knowledge import models
from validator.physics import (
    FSDP_FULL_SHARD,
    ZERO_3,
    Adapter,
    Architecture,
    Sharding,
    Workload,
    estimate_device_memory,
    layers_kept_whole,
)
from validator.physics.activation_checkpointing import saved_by_all_layers
from validator.physics.decoder_layers import build_layers
from validator.physics.estimate import DeviceTerm
from validator.physics.training_step import TrainingStep, training_step
from validator.physics.weights import gathered_weight_bytes

# Layers of several shapes, one after the other.
GEMMA = models.find_model("gemma-4-e2b").arch._replace(towers=())
FREEZE = Workload(method="freeze", trainable_layers=3)


def test_layers_know_their_shapes_after_others_have_filled_the_cache() -> None:
    """A layer is equal only to itself: one that is made anew is found nowhere."""
    run = TrainingStep(GEMMA, Workload(method="lora"))
    layers = run.layers
    build_layers.cache_clear()
    assert all(run.for_layer(block) is not run for _, block in layers)


def test_layers_that_gradients_visit_are_some_of_all() -> None:
    run = TrainingStep(GEMMA, FREEZE)
    layers = {block for _, block in run.layers}
    build_layers.cache_clear()
    assert {block for _, block in run.backward_layers} <= layers
    assert sum(number for number, _ in run.backward_layers) == 3


@pytest.mark.parametrize("work", [Workload(method="lora", checkpointing="off"), FREEZE], ids=lambda work: work.method)
def test_an_answer_does_not_depend_on_earlier_ones(work: Workload) -> None:
    def peak(arch: Architecture) -> float:
        training_step.cache_clear()
        return estimate_device_memory(arch, work).expected

    before = peak(GEMMA)
    for width in range(1, 600):  # more than the cache holds, between which the model itself stays in use
        build_layers(GEMMA._replace(layer_groups=(), hidden=64 * width))
        build_layers(GEMMA, work.experts_fused)
    assert peak(GEMMA) == before


# Three of four layers have linear attention, which an adapter of queries does not reach.
QWEN = models.find_model("qwen3.5-35b-a3b").arch._replace(towers=())
ADAPTER = Adapter(targets=("q", "v"), layers=((3, ()), (1, ("q", "v"))) * 10)
QUERIES = Workload(precision="engine", adapter=ADAPTER, sharding=Sharding(1, 8, ZERO_3))


def test_layers_without_an_adapter_are_not_recomputed() -> None:
    """LLaMA-Factory checkpoints only layers that have a trained parameter."""
    assert layers_kept_whole(QWEN, QUERIES) == 30
    assert layers_kept_whole(QWEN, QUERIES._replace(adapter=Adapter())) == 0
    assert layers_kept_whole(QWEN, QUERIES._replace(checkpointing="off")) == 0
    assert layers_kept_whole(QWEN, QUERIES._replace(method="full")) == 0
    saved = saved_by_all_layers(training_step(QWEN, QUERIES))
    assert saved[DeviceTerm.CHECKPOINTS] == 10 * 2 * 2048 * 2048
    assert saved[DeviceTerm.ACTIVATIONS] > 0


EXPERTS_OF_ALL_LAYERS = 2 * 40 * 256 * 3 * 2048 * 512


@pytest.mark.parametrize(
    ("work", "stored", "held"),
    [
        (QUERIES._replace(checkpointing="off"), False, 1.0),
        (QUERIES._replace(checkpointing="off", experts="sliced"), True, 1.0),
        (QUERIES._replace(checkpointing="off", method="full"), False, 1.0),
        (QUERIES, False, 0.75),  # of the layers that are not recomputed
        (QUERIES._replace(checkpointing="off"), True, 0.0),  # matmuls save the parameter, which is emptied
        (QUERIES._replace(checkpointing="off", experts="separate"), False, 0.0),
        (QUERIES._replace(checkpointing="off", sharding=Sharding(1, 8, FSDP_FULL_SHARD)), False, 0.0),
    ],
)
def test_autograd_holds_experts_that_zero_3_has_released(work: Workload, stored: bool, held: float) -> None:
    """Until the backward pass of their layer, if the layer is not recomputed."""
    arch = QWEN._replace(ffn=QWEN.ffn._replace(experts_as_stored=stored))
    step, released = (
        training_step(arch, work),
        training_step(arch, work._replace(adapter=Adapter(), checkpointing="layer")),
    )
    more = gathered_weight_bytes(step, "loss") - gathered_weight_bytes(released, "loss")
    assert more == pytest.approx(held * EXPERTS_OF_ALL_LAYERS, rel=0.01, abs=1e6)
