"""The peak of a deep model from two shallow copies of it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from validator.simulate.cell import Cell
from validator.simulate.peaks import Categories, PartPeak, by_part
from validator.simulate.run import follow

Part = tuple[str, str]
# Layers that are told apart, two from each end; whatever lies between is alike.
_SHALLOW, _FURTHER = 4, 2


class Extended(NamedTuple):
    """Bytes at the peak by category, the part of the step that reaches it, the peak of each moment of a step (bytes),
    bytes of all gradients and optimizer states, and counts of parameters."""

    peak: int
    categories: Categories
    part: Part
    operator: str
    moments: dict[str, int]
    gradients: int
    states: int
    parameters: int
    trainable: int


class _Copy(NamedTuple):
    parts: dict[Part, PartPeak]
    gradients: int
    states: int
    parameters: int
    trainable: int


def extended(cell: Cell) -> Extended:
    """Live bytes at a given point of the first two, last two layers, head and optimizer are linear in the number of
    layers, and points in between lie between their neighbours; so each part's line is extended to the real depth and
    the highest wins.

    Raises RuntimeError where the two copies do not have the same parts."""
    trained = cell.freeze_layers if cell.method == "freeze" else 0
    shallow = max(_SHALLOW, trained + _SHALLOW if trained > 2 else 0)
    small, large = (_copy(cell, depth) for depth in (shallow, shallow + _FURTHER))
    if {part for part in small.parts if part[1] != "mid"} != {part for part in large.parts if part[1] != "mid"}:
        raise RuntimeError("the parts of a step differ between depths")
    steps = int(cell.model["num_hidden_layers"]) - shallow

    def to_depth(near: int, far: int) -> int:
        return near + (far - near) * steps // _FURTHER

    peaks = {part: to_depth(near.size, large.parts[part].size) for part, near in small.parts.items()}
    part = max(peaks, key=lambda part: peaks[part])
    near, far = small.parts[part].categories, large.parts[part].categories
    categories = {name: to_depth(near.get(name, 0), far.get(name, 0)) for name in near.keys() | far.keys()}
    totals = (to_depth(*pair) for pair in zip(small[1:], large[1:], strict=True))
    return Extended(peaks[part], categories, part, small.parts[part].operator, _moments(peaks), *totals)


def _copy(cell: Cell, depth: int) -> _Copy:
    run = follow(replace(cell, model={**cell.model, "num_hidden_layers": depth}))
    return _Copy(by_part(run.tracker), run.gradients, run.states, run.parameters, run.trainable)


def _moments(peaks: dict[Part, int]) -> dict[str, int]:
    moments: dict[str, int] = {}
    for part, size in peaks.items():
        if part[0].startswith("s"):
            name = _moment(*part)
            moments[name] = max(moments.get(name, 0), size)
    return moments


def _moment(phase: str, segment: str) -> str:
    """The part of a training step that a phase and a segment belong to."""
    part = phase.split(".")[1]
    return part if part == "opt" else f"{part}_{segment if segment in ('head', 'emb', 'pre') else 'layers'}"
