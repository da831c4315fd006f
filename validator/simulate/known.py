"""Fake tensors whose values are known all the same: small ones of whole numbers, by which classes choose shapes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import fake_tensor

# Tensors of up to so many elements keep their values.
_KNOWN = 1 << 22
_WHOLE = (torch.int32, torch.int64)


@contextlib.contextmanager
def values_known(number: int) -> Iterator[None]:
    """Small tensors of whole numbers keep their values, and a mask without any names `number` tokens."""
    limit, arange, full, zeros, where = (
        fake_tensor.CONSTANT_NUMEL_LIMIT, torch.arange, torch.full, torch.zeros, torch.where
    )  # fmt: skip
    read, get, put = torch.Tensor.item, torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def counted(*bounds: Any, **more: Any) -> torch.Tensor:
        whole = not more.get("dtype") and bounds and all(type(bound) is int for bound in bounds)
        if not whole or not range(*bounds):
            return arange(*bounds, **more)
        return torch.tensor(list(range(*bounds)), device=more.get("device"))

    def filled(size: Any, fill_value: Any, **more: Any) -> torch.Tensor:
        sizes = [int(each) for each in size]
        if more.get("dtype") not in _WHOLE:
            return full(sizes, fill_value, **more)
        with fake_tensor.unset_fake_temporarily():
            made = full(sizes, fill_value, dtype=more["dtype"]).tolist()
        return torch.tensor(made, **more)

    def empty(*size: Any, **more: Any) -> torch.Tensor:
        if more.get("dtype") not in _WHOLE:
            return zeros(*size, **more)
        return filled(size[0] if isinstance(size[0], tuple | list) else size, 0, **more)

    def chosen(mask: torch.Tensor, *values: Any) -> Any:
        return where(mask, *(torch.tensor(value) if type(value) is int else value for value in values))

    def written(tensor: torch.Tensor, index: Any, value: Any) -> None:
        if _value(tensor) is None:
            put(tensor, _place(tensor, index, number), value)
            return
        with fake_tensor.unset_fake_temporarily():
            _value(tensor)[_real(index)] = _real(value)

    fake_tensor.CONSTANT_NUMEL_LIMIT = _KNOWN
    torch.arange, torch.full, torch.zeros, torch.where = counted, filled, empty, chosen
    torch.Tensor.item = lambda self: read(self) if _value(self) is not None else 0.0
    torch.Tensor.__getitem__ = lambda self, index: get(self, _place(self, index, number))
    torch.Tensor.__setitem__ = written
    try:
        yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT, torch.Tensor.item = limit, read
        torch.arange, torch.full, torch.zeros, torch.where = arange, full, zeros, where
        torch.Tensor.__getitem__, torch.Tensor.__setitem__ = get, put


def _value(tensor: Any) -> Any:
    """The numbers of a fake tensor that are known."""
    return getattr(tensor, "constant", None)


def _real(index: Any) -> Any:
    """An index or a value, with the numbers of its tensors."""
    if isinstance(index, tuple):
        return tuple(_real(part) for part in index)
    if isinstance(index, slice):
        return slice(*(None if end is None else int(end) for end in (index.start, index.stop, index.step)))
    return index if _value(index) is None else _value(index)


def _place(tensor: torch.Tensor, index: Any, number: int) -> Any:
    """What a mask names, as indices."""
    mask = index[0] if isinstance(index, tuple) and index else index
    if not (isinstance(mask, fake_tensor.FakeTensor) and mask.dtype == torch.bool) or _value(tensor) is not None:
        return index
    each = tensor.shape[-1] if mask.dim() == tensor.dim() else 1
    if mask.constant is None:
        named = number * each
    else:
        with fake_tensor.unset_fake_temporarily():
            named = mask.constant.nonzero().shape[0]
    return tuple(torch.empty(named, dtype=torch.int64) for _ in range(mask.dim()))
