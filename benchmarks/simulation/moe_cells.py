"""Cells of mixtures whose experts are linear modules, as before transformers 5; recorded beside those of grid.py.

    PYTHONPATH=FOLDER_OF_TRANSFORMERS_4.57.1 python -m benchmarks simulator moe_cells

Fake tensors cannot say which tokens an expert gets: all get equally many, which is also what needs least padding.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from simulation import grid
from torch._subclasses.fake_tensor import FakeTensor

BF16, OFF = grid.BF16, grid.OFF
CELLS = [
    {**grid.DEFAULTS, **setting, "model": "mixtral-8x7b", "micro_batch": 1}
    for setting in [
        {"method": "lora", "seq_len": 2048}, {"method": "lora", "seq_len": 1024, **OFF},
        {"method": "lora", "seq_len": 2048, **OFF, "lora_targets": "qv"},
        {"method": "lora", "seq_len": 2048, **BF16, "lora_rank": 64, "attn": "fa2"},
        {"method": "qlora4", "seq_len": 8192}, {"method": "qlora4", "seq_len": 2048, **OFF},
        {"method": "full", "seq_len": 2048}, {"method": "full", "seq_len": 2048, **BF16, **OFF},
    ]
]  # fmt: skip
CELLS.append({**CELLS[1], "model": "qwen3-30b-a3b", "seq_len": 2048})
# Its experts are one tensor here, too; the class of transformers 5 fails.
CELLS += [{**grid.LINEAR[number], "model": "dbrx-132b", "seq_len": 1024, "micro_batch": 1} for number in (0, 1, 4, 5)]


class _Numbers(list[int]):
    """Of all experts, as transformers 4.52 asks a tensor for them."""

    def tolist(self) -> list[int]:
        return self


def balance(model: str) -> None:
    """Make the two questions that route tokens answer as if every expert got its share."""
    experts = grid.architecture(model).ffn.experts
    where, nonzero = torch.where, torch.Tensor.nonzero

    def balanced(*given: Any) -> Any:
        if len(given) > 1 or not isinstance(given[0], FakeTensor):
            return where(*given)
        share = given[0].numel() // experts
        return tuple(torch.empty(share, dtype=torch.int64) for _ in given[0].shape)

    def every(tensor: Any, **more: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return nonzero(tensor, **more)
        numbers = _Numbers(range(tensor.numel()))
        return (numbers,) if more.get("as_tuple") else numbers

    torch.where, torch.Tensor.nonzero = balanced, every


def main() -> None:
    if not transformers.__version__.startswith("4."):
        raise SystemExit(f"transformers {transformers.__version__} fuses the experts; put an older one on PYTHONPATH")
    done = {grid.key(row) for row in grid.recorded() if grid.separate(row)}
    for cell in CELLS:
        if grid.key(cell) not in done:
            balance(cell["model"])
            grid.record(cell, grid.simulated(cell))
