"""A model and what is asked of it, together."""

from __future__ import annotations

import pytest

from validator.knowledge import models
from validator.physics import Architecture, Workload, estimate_device_memory
from validator.physics.decoder_layers import build_layers
from validator.physics.training_step import TrainingStep, training_step

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
