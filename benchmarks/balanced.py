"""Cells of mixtures that split their tokens by numbers known only at run time; recorded beside those of grid.py.

Fake tensors cannot say how many tokens an expert gets: all get equally many.
"""

from __future__ import annotations

from typing import Any

import grid
from torch._subclasses.fake_tensor import FakeTensor

CHOSEN = {"granite-3-1b-a400m": (0, 1, 4, 6, 7, 8, 10, 12), "granite-4.0-tiny-preview": (0, 1, 4, 6, 9, 11)}
CELLS = [
    {**grid.FAMILY[number], "model": model, "seq_len": 1024, "micro_batch": 2, "lora_targets": grid.adaptable(model)}
    for model in grid.BALANCED
    for number in CHOSEN[model]
]


def _balance(cell: dict[str, Any]) -> None:
    """Make the question for the number of tokens of each expert answer as if every expert got its share."""
    chosen = cell["seq_len"] * cell["micro_batch"] * grid.config(cell["model"])["num_experts_per_tok"]

    def shares(tensor: FakeTensor) -> list[int]:
        experts = tensor.numel()
        return [chosen // experts + (number < chosen % experts) for number in range(experts)]

    FakeTensor.tolist = shares


def main() -> None:
    done = {grid.key(row) for row in grid.recorded()}
    for cell in CELLS:
        if grid.key(cell) not in done:
            _balance(cell)
            grid.record(cell, grid.simulated(cell))


if __name__ == "__main__":
    main()
