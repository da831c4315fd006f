"""Answers one simulation request: live memory of a step with all layers, or of two shallow copies whose peaks are
extrapolated to the real depth."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from validator.simulation import model_loading
from validator.simulation.fake_training_step import follow_steps
from validator.simulation.model_layers import LayerCounts, ModelShape, count_layers, shallow_copies
from validator.simulation.simulated_memory import PhasePeak, SimulatedStep
from validator.simulation.simulation_request import SimulationRequest
from validator.simulation.tracker import PartPeak, StepPart, peaks_by_part


class StepPeaks(NamedTuple):
    """The peak of every part of a step, bytes of all gradients and optimizer states, and counts of parameters."""

    parts: dict[StepPart, PartPeak]
    gradients: int
    states: int
    parameters: int
    trainable: int

    @property
    def highest(self) -> StepPart:
        """The part with the largest peak."""
        return max(self.parts, key=lambda part: self.parts[part].size)

    def moments(self) -> dict[str, PhasePeak]:
        """Return the highest part of each phase of a step, with the most transient bytes at any time of that phase."""
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
    """Return live memory of one warm step, from two shallow copies if the layers repeat.

    Raises LookupError for a type that transformers lacks, and whatever its class raises."""
    shape = model_shape(request)
    to = shallow_copies(shape.kinds, abs(request.freeze_layers) if request.method == "freeze" else 0)
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
    """Return the layers of the whole model."""
    config = model_loading.build_config(request.model)
    with torch.device("meta"):
        return count_layers(model_loading.model_without_weights(config, torch.bfloat16), config)


def extrapolate(request: SimulationRequest, to: LayerCounts) -> StepPeaks:
    """Extend each part's peak linearly from two shallow copies to the real depth. Live bytes at a given point of the
    first two and last two layers, head and optimizer are linear in the number of layers, and points in between lie
    between their neighbours.

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
    """Return the peaks of a step through all layers."""
    run = follow_steps(request)
    return StepPeaks(peaks_by_part(run.tracker), run.gradients, run.states, run.parameters, run.trainable)
