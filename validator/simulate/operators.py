"""Operators that do otherwise on CUDA than on the tensors here, which claim to be on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from validator.simulate.attention import scaled_dot_product_attention


def _layer_norm(entering: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None,
                eps: float = 1e-5) -> torch.Tensor:  # fmt: skip
    """CUDA's autocast gives it fp32 (PyTorch, Automatic Mixed Precision, ops that autocast to float32)."""
    if torch.is_autocast_enabled("cpu"):
        entering, weight, bias = (None if each is None else each.float() for each in (entering, weight, bias))
    return torch.layer_norm(entering, shape, weight, bias, eps, True)


def _dropout(entering: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA's kernel keeps a mask of one byte an element; the CPU's keeps one in the input's type."""
    if not training or p == 0 or inplace:
        return torch.dropout(entering, p, training)
    dropped: torch.Tensor = torch.ops.aten.native_dropout(entering, p, True)[0]
    return dropped


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """CUDA's operators in the place of the CPU's, for models that call them by torch.nn.functional."""
    own = {"scaled_dot_product_attention": scaled_dot_product_attention, "layer_norm": _layer_norm, "dropout": _dropout}
    real = {name: getattr(functional, name) for name in own}
    for name, operator in own.items():
        setattr(functional, name, operator)
    try:
        yield
    finally:
        for name, operator in real.items():
            setattr(functional, name, operator)
