"""Answers a simulation request: the live memory of a training step. The step runs through all layers, or through two
shallow copies whose peaks are extrapolated to the real number of layers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import torch

from validator.simulation import model_loading
from validator.simulation.fake_training_step import follow_steps
from validator.simulation.model_layers import LayerCounts, ModelShape, count_layers, shallow_copies
from validator.simulation.simulated_memory import PhasePeak, SimulatedStep
from validator.simulation.simulation_request import SimulationRequest
from validator.simulation.tracker import PartPeak, StepPart, peaks_by_part

# A number as a part of a module's name
_LAYER_NUMBER = re.compile(r"(^|[.,])\d+(\.|$)")


class StepPeaks(NamedTuple):
    """The memory peak of every part of a training step. A part is a pair: the phase and the segment (usually a decoder
    layer). `gradients` and `states` are the bytes of all gradients and optimizer states. `parameters` and `trainable`
    count parameters."""

    parts: dict[StepPart, PartPeak]
    gradients: int
    states: int
    parameters: int
    trainable: int

    @property
    def highest(self) -> StepPart:
        """The part of the step, a pair of phase and segment, that has the largest memory peak."""
        return max(self.parts, key=lambda part: self.parts[part].size)

    def moments(self) -> dict[str, PhasePeak]:
        """Return the memory peak of each phase of the step, by the name of the phase, such as `fwd_layers` or `opt`.
        The peak is that of the phase's largest part. Its transient bytes (all but weights, gradients and optimizer
        states) are the most at any time of the phase, and may belong to another part."""
        moments: dict[str, PhasePeak] = {}
        for (phase, segment), part in self.parts.items():
            if phase.startswith("s"):
                name = phase.split(".")[1]
                if name != "opt":
                    name = f"{name}_{segment if segment in ('head', 'emb', 'pre') else 'layers'}"
                peak = PhasePeak(part.size, part.categories, part.transient)
                old = moments.get(name, peak)
                highest = max(old, peak, key=lambda one: one.size)
                moments[name] = highest._replace(transient=max(old.transient, peak.transient))
        return moments


def simulate_step(request: SimulationRequest) -> SimulatedStep:
    """Simulate one training step whose optimizer states exist already, and return its live memory. If the layers
    repeat, two shallow copies are simulated and extrapolated, unless the targets of the adapter name a layer by its
    number.

    Raises LookupError if transformers lacks the model type, and whatever the model class raises."""
    shape = model_shape(request)
    trained = abs(request.freeze_layers) if request.method == "freeze" else 0
    to = None if _LAYER_NUMBER.search(request.lora_targets) else shallow_copies(shape.kinds, trained)
    result = extrapolate(request, to) if to else simulate_all_layers(request)
    return SimulatedStep(
        result.moments(),
        shape.parameters,
        result.trainable,
        shape.counted,
        shape.embedding,
        shape.head,
        shape.hidden,
        to is None,
    )


def model_shape(request: SimulationRequest) -> ModelShape:
    """Return the shape of the whole model (layers and numbers of parameters), from the model class on the meta
    device."""
    config = model_loading.build_config(request.model)
    with torch.device("meta"):
        return count_layers(model_loading.model_without_weights(config, torch.bfloat16), config)


def extrapolate(request: SimulationRequest, to: LayerCounts) -> StepPeaks:
    """Simulate two shallow copies, and extend each part's peak linearly to the real number of layers (`to`). This is
    exact for the first two and last two layers, the head and the optimizer, whose live bytes are linear in the number
    of layers. The peak of the layers between lies between their neighbours.

    Raises RuntimeError if the two copies do not have the same parts."""
    small, large = (simulate_all_layers(replace(request, depth=depth)) for depth in (to.small, to.large))
    if {part for part in small.parts if part[1] != "mid"} != {part for part in large.parts if part[1] != "mid"}:
        raise RuntimeError("the parts of a step differ between depths")
    parts = {part: _extrapolate_part(near, large.parts[part], to) for part, near in small.parts.items()}
    return StepPeaks(parts, *(to.extend(*pair) for pair in zip(small[1:], large[1:], strict=True)))


def _extrapolate_part(near: PartPeak, far: PartPeak, to: LayerCounts) -> PartPeak:
    names = near.categories.keys() | far.categories.keys()
    categories = {name: to.extend(near.categories.get(name, 0), far.categories.get(name, 0)) for name in names}
    size, transient = to.extend(near.size, far.size), to.extend(near.transient, far.transient)
    return PartPeak(size, categories, near.operator, transient)


def simulate_all_layers(request: SimulationRequest) -> StepPeaks:
    """Simulate a step through all layers of the request's model, and return its peaks."""
    run = follow_steps(request)
    return StepPeaks(peaks_by_part(run.tracker), run.gradients, run.states, run.parameters, run.trainable)
