"""Real optimizers, and the states of those whose kernels need a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

# bitsandbytes quantizes the moments of tensors that have so many elements or more, in blocks.
_QUANTIZED_FROM, _BLOCK = 4096, 256


def optimizer(name: str, model: Any) -> torch.optim.Optimizer:
    """The optimizer of the model's trained parameters, as transformers' Trainer makes it."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-5, scale_parameter=False, relative_step=False)
    if name == "adamw_8bit":
        precise = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        return EightBit(trained, precise)
    if name == "sgd":
        return torch.optim.SGD(trained, lr=1e-5, foreach=False)
    return torch.optim.AdamW(trained, lr=1e-5, foreach=name == "adamw_foreach", fused=name != "adamw_foreach")


def states(made: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All tensors that the optimizer keeps."""
    return [value for state in made.state.values() for value in state.values() if isinstance(value, torch.Tensor)]


class EightBit(torch.optim.Optimizer):
    """What bitsandbytes' 8-bit AdamW keeps: two uint8 moments and an fp32 scale for each block; fp32 moments for small
    tensors and for embeddings, which transformers' Trainer excepts (`precise`: their ids). The update works in
    place."""

    def __init__(self, trained: Iterable[torch.Tensor], precise: set[int]) -> None:
        self.precise = precise
        super().__init__(trained, {})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.grad is not None and not self.state[parameter]:
                for name in ("state1", "state2"):
                    self.state[parameter] |= self._moment(parameter, name)

    def _moment(self, parameter: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        size = parameter.numel()
        if size < _QUANTIZED_FROM or id(parameter) in self.precise:
            return {name: torch.zeros(parameter.shape, dtype=torch.float32)}
        scales = torch.zeros(-(-size // _BLOCK))
        return {name: torch.zeros(parameter.shape, dtype=torch.uint8), f"{name}_absmax": scales}
