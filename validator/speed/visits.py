"""Which layers a micro batch passes, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from validator.memory.run import Run
from validator.memory.shapes import Block


class Visits(NamedTuple):
    """Layers of one kind: how many there are, and how many of them gradients visit."""

    block: Block
    forward: int
    backward: int


def visits(run: Run) -> Iterator[Visits]:
    """Of every kind of layer."""
    every, visited = Counter[Block](), Counter[Block]()
    for number, block in run.layers:
        every[block] += number
    for number, block in run.visited:
        visited[block] += number
    yield from (Visits(block, number, visited[block]) for block, number in every.items())


def forward_passes(run: Run) -> int:
    """One, and those without gradients: of a reference, and of mismatched answers (KTO)."""
    return (1 + int(run.work.reference_logits)) * (2 if run.work.estimates_kl else 1)


def again(run: Run) -> int:
    """How often the layers that gradients visit are computed once more."""
    return 0 if run.checkpointing == "off" else 1
