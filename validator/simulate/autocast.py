"""bf16 autocast around a model, as accelerate puts it there."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch


class Amp(contextlib.ContextDecorator):
    """bf16 autocast. The tensors claim to be on the cpu, whose autocast lists agree with CUDA's for the operators of
    these models; whoever asks for the state of CUDA's autocast (PEFT, bitsandbytes, checkpoint) gets this one's."""

    def __enter__(self) -> None:
        self.entered = torch.autocast("cpu", dtype=torch.bfloat16)
        self.entered.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.entered.__exit__(*raised)


def wrap(model: Any) -> None:
    """accelerate.Accelerator.prepare_model with mixed_precision="bf16"."""
    from accelerate.utils.operations import convert_outputs_to_fp32

    model.forward = types.MethodType(Amp()(model.forward.__func__), model)
    model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__func__), model)


def cast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """What autocast makes of the inputs of a product."""
    if not torch.is_autocast_enabled():
        return list(tensors)
    return [tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in tensors]
