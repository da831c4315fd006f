"""One question, answered: the cell is built, stepped through and counted."""

from __future__ import annotations

import torch

from validator.simulate import config, environment, pictures
from validator.simulate.answer import Answer, Moment
from validator.simulate.cell import Cell
from validator.simulate.depth import depths, direct, extended
from validator.simulate.shape import Shape, measure


def answer(cell: Cell) -> Answer:
    """Live memory of one warm step, by depth where the layers repeat.

    Raises LookupError for a type that transformers lacks, and whatever its class raises."""
    environment.prepare()
    shape = shape_of(cell)
    to = depths(shape.kinds, abs(cell.freeze_layers) if cell.method == "freeze" else 0)
    result = extended(cell, to) if to else direct(cell)
    moments = {name: Moment(peak.size, peak.categories, peak.passing) for name, peak in result.moments().items()}
    return Answer(moments, shape.parameters, result.trainable, shape.counted, shape.embedding, shape.head, shape.hidden,
                  to is None)  # fmt: skip


def shape_of(cell: Cell) -> Shape:
    """The layers of the whole model."""
    environment.prepare()
    made = config.build(cell.model)
    with torch.device("meta"):
        return measure(pictures.made(made, torch.bfloat16), made)
