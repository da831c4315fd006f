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


_POWER = torch.pow


def _pow(base: Any, exponent: Any, **more: Any) -> torch.Tensor:
    """CUDA's autocast gives it fp32 (as above)."""
    raised = isinstance(base, torch.Tensor) and base.is_floating_point() and torch.is_autocast_enabled("cpu")
    power: torch.Tensor = _POWER(base.float() if raised else base, exponent, **more)
    return power


def _dropout(entering: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA's kernel keeps a mask of one byte an element; the CPU's keeps one in the input's type."""
    if not training or p == 0 or inplace:
        return torch.dropout(entering, p, training)
    dropped: torch.Tensor = torch.ops.aten.native_dropout(entering, p, True)[0]
    return dropped


class _Grouped(torch.autograd.Function):
    """A product of each expert's rows: what it allocates, forward and backward."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(rows, weights)
        return rows.new_empty(rows.shape[0], weights.shape[-1])

    @staticmethod
    def backward(context: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, weights = context.saved_tensors
        return torch.empty_like(rows), torch.empty_like(weights)


def _grouped_mm(rows: torch.Tensor, weights: torch.Tensor, **more: Any) -> torch.Tensor:
    """CUDA takes fp32, too, by one product for each group (aten, GroupedMMUtils.h), which the kernel's fake twin
    refuses."""
    if rows.dtype == torch.bfloat16:
        return torch._grouped_mm(rows, weights, **more)
    made: torch.Tensor = _Grouped.apply(rows, weights)
    return made


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """CUDA's operators in the place of the CPU's, for models that call them by torch.nn.functional."""
    own = {"scaled_dot_product_attention": scaled_dot_product_attention, "layer_norm": _layer_norm,
           "dropout": _dropout, "grouped_mm": _grouped_mm}  # fmt: skip
    real = {name: getattr(functional, name) for name in own if hasattr(functional, name)}
    for name in real:
        setattr(functional, name, own[name])
    torch.pow = _pow
    try:
        yield
    finally:
        torch.pow = _POWER
        for name, operator in real.items():
            setattr(functional, name, operator)
