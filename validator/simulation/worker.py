"""Answers one simulation request: live memory of a step with all layers, or of two shallow copies whose peaks are
extrapolated to the real depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from validator.simulation import cuda_behaviour, model_loading
from validator.simulation.fake_training_step import follow_steps
from validator.simulation.model_layers import ModelShape, count_layers, repeating_pattern
from validator.simulation.simulated_memory import PhasePeak, SimulatedStep
from validator.simulation.simulation_request import SimulationRequest
from validator.simulation.tracker import BytesByCategory, PartPeak, StepPart, peaks_by_part

# Layers that are told apart, two from each end; whatever lies between is alike. So many more has the larger copy.
_SHALLOW_LAYERS, _EXTRA_LAYERS = 4, 2


class LayerCounts(NamedTuple):
    """Numbers of layers: of two shallow copies and of the model."""

    small: int
    large: int
    full: int

    def extend(self, near: int, far: int) -> int:
        """A figure of the model from those of the copies."""
        return near + (far - near) * (self.full - self.small) // (self.large - self.small)


class StepPeaks(NamedTuple):
    """The peak of every part of a step, bytes of all gradients and optimizer states, and counts of parameters."""

    parts: dict[StepPart, PartPeak]
    gradients: int
    states: int
    parameters: int
    trainable: int

    @property
    def highest(self) -> StepPart:
        """The part that reaches the peak."""
        return max(self.parts, key=lambda part: self.parts[part].size)

    def moments(self) -> dict[str, PartPeak]:
        """The highest part of each moment of a step, with the most that comes and goes at that moment."""
        moments: dict[str, PartPeak] = {}
        for part, peak in self.parts.items():
            if part[0].startswith("s"):
                phase, segment = part[0].split(".")[1], part[1] if part[1] in ("head", "emb", "pre") else "layers"
                name = phase if phase == "opt" else f"{phase}_{segment}"
                old = moments.get(name, peak)
                most = max(old.transient, peak.transient)
                moments[name] = max(old, peak, key=lambda one: one.size)._replace(transient=most)
        return moments


def shallow_copies(kinds: Sequence[int], frozen_but: int = 0) -> LayerCounts | None:
    """Return the depths of the two copies that stand for a model with such layers, of which the last `frozen_but` train
    (0: no such limit). None if its layers do not repeat, or the model is hardly deeper than the copies."""
    repeats = repeating_pattern(kinds)
    if repeats is None:
        return None
    before, length = repeats
    step = length if length > 1 else _EXTRA_LAYERS
    small = _SHALLOW_LAYERS + (length if length > 1 else 0)  # so that what lies between has every kind
    small = max(small, before + _SHALLOW_LAYERS if before else 0, frozen_but + _SHALLOW_LAYERS if frozen_but > 2 else 0)
    small += (len(kinds) - small) % length
    return LayerCounts(small, small + step, len(kinds)) if small + step < len(kinds) else None


def extrapolate(request: SimulationRequest, to: LayerCounts) -> StepPeaks:
    """Extend each part's peak linearly from two shallow copies to the real depth. Live bytes at a given point of the
    first two and last two layers, head and optimizer are linear in the number of layers, and points in between lie
    between their neighbours.

    Raises RuntimeError if the two copies do not have the same parts."""
    small, large = (simulate_all_layers(replace(request, depth=depth)) for depth in to[:2])
    if {part for part in small.parts if part[1] != "mid"} != {part for part in large.parts if part[1] != "mid"}:
        raise RuntimeError("the parts of a step differ between depths")
    parts = {part: _extrapolate_part(near, large.parts[part], to) for part, near in small.parts.items()}
    return StepPeaks(parts, *(to.extend(*pair) for pair in zip(small[1:], large[1:], strict=True)))


def simulate_all_layers(request: SimulationRequest) -> StepPeaks:
    """Return the peaks of a step through all layers."""
    run = follow_steps(request)
    return StepPeaks(peaks_by_part(run.tracker), run.gradients, run.states, run.parameters, run.trainable)


def _extrapolate_part(near: PartPeak, far: PartPeak, to: LayerCounts) -> PartPeak:
    names = near.categories.keys() | far.categories.keys()
    categories: BytesByCategory = {
        name: to.extend(near.categories.get(name, 0), far.categories.get(name, 0)) for name in names
    }
    size, transient = to.extend(near.size, far.size), to.extend(near.transient, far.transient)
    return PartPeak(size, categories, near.operator, transient)


def simulate_step(request: SimulationRequest) -> SimulatedStep:
    """Return live memory of one warm step, from two shallow copies if the layers repeat.

    Raises LookupError for a type that transformers lacks, and whatever its class raises."""
    cuda_behaviour.prepare_libraries()
    shape = model_shape(request)
    to = shallow_copies(shape.kinds, abs(request.freeze_layers) if request.method == "freeze" else 0)
    result = extrapolate(request, to) if to else simulate_all_layers(request)
    moments = {name: PhasePeak(peak.size, peak.categories, peak.transient) for name, peak in result.moments().items()}
    return SimulatedStep(
        moments,
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
    cuda_behaviour.prepare_libraries()
    made = model_loading.build_config(request.model)
    with torch.device("meta"):
        return count_layers(model_loading.model_without_weights(made, torch.bfloat16), made)
