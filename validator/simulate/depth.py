"""The peaks of a deep model from two shallow copies of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from validator.simulate.cell import Cell
from validator.simulate.peaks import Categories, Part, PartPeak, by_part
from validator.simulate.run import follow
from validator.simulate.shape import period

# Layers that are told apart, two from each end; whatever lies between is alike. So many more has the larger copy.
_SHALLOW, _FURTHER = 4, 2


class Depths(NamedTuple):
    """Numbers of layers: of two shallow copies and of the model."""

    small: int
    large: int
    full: int

    def extend(self, near: int, far: int) -> int:
        """A figure of the model from those of the copies."""
        return near + (far - near) * (self.full - self.small) // (self.large - self.small)


class Extended(NamedTuple):
    """The peak of every part of a step, bytes of all gradients and optimizer states, and counts of parameters."""

    parts: dict[Part, PartPeak]
    gradients: int
    states: int
    parameters: int
    trainable: int

    @property
    def highest(self) -> Part:
        """The part that reaches the peak."""
        return max(self.parts, key=lambda part: self.parts[part].size)

    def moments(self) -> dict[str, PartPeak]:
        """The highest part of each moment of a step, with the most that comes and goes at that moment."""
        moments: dict[str, PartPeak] = {}
        for part, peak in self.parts.items():
            if part[0].startswith("s"):
                name = _moment(*part)
                old = moments.get(name, peak)
                most = max(old.passing, peak.passing)
                moments[name] = max(old, peak, key=lambda one: one.size)._replace(passing=most)
        return moments


def depths(kinds: Sequence[int], frozen_but: int = 0) -> Depths | None:
    """Which copies stand for a model with such layers, of which the last `frozen_but` train (0: no such limit); None
    where its layers do not repeat, or it is hardly deeper than they would be."""
    repeats = period(kinds)
    if repeats is None:
        return None
    before, length = repeats
    step = length if length > 1 else _FURTHER
    small = _SHALLOW + (length if length > 1 else 0)  # so that what lies between has every kind
    small = max(small, before + _SHALLOW if before else 0, frozen_but + _SHALLOW if frozen_but > 2 else 0)
    small += (len(kinds) - small) % length
    return Depths(small, small + step, len(kinds)) if small + step < len(kinds) else None


def extended(cell: Cell, to: Depths) -> Extended:
    """Live bytes at a given point of the first two, last two layers, head and optimizer are linear in the number of
    layers, and points in between lie between their neighbours; so each part's line is extended to the real depth.

    Raises RuntimeError where the two copies do not have the same parts."""
    small, large = (direct(replace(cell, depth=depth)) for depth in to[:2])
    if {part for part in small.parts if part[1] != "mid"} != {part for part in large.parts if part[1] != "mid"}:
        raise RuntimeError("the parts of a step differ between depths")
    parts = {part: _extended(near, large.parts[part], to) for part, near in small.parts.items()}
    return Extended(parts, *(to.extend(*pair) for pair in zip(small[1:], large[1:], strict=True)))


def direct(cell: Cell) -> Extended:
    """The peaks of all layers of a cell."""
    run = follow(cell)
    return Extended(by_part(run.tracker), run.gradients, run.states, run.parameters, run.trainable)


def _extended(near: PartPeak, far: PartPeak, to: Depths) -> PartPeak:
    names = near.categories.keys() | far.categories.keys()
    categories: Categories = {
        name: to.extend(near.categories.get(name, 0), far.categories.get(name, 0)) for name in names
    }
    size, passing = to.extend(near.size, far.size), to.extend(near.passing, far.passing)
    return PartPeak(size, categories, near.operator, passing)


def _moment(phase: str, segment: str) -> str:
    """The part of a training step that a phase and a segment belong to."""
    part = phase.split(".")[1]
    return part if part == "opt" else f"{part}_{segment if segment in ('head', 'emb', 'pre') else 'layers'}"
