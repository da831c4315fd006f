"""Values of fake tensors: small integer tensors keep theirs, as classes choose shapes by them; scalars of all others
are read as zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import fake_tensor

# Tensors of up to so many elements keep their values.
_MAX_KNOWN_ELEMENTS = 1 << 22
_INTEGER_DTYPES = (torch.int32, torch.int64)


@contextlib.contextmanager
def keep_small_int_values(number: int) -> Iterator[None]:
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
        if more.get("dtype") not in _INTEGER_DTYPES:
            return full(sizes, fill_value, **more)
        with fake_tensor.unset_fake_temporarily():
            made = full(sizes, fill_value, dtype=more["dtype"]).tolist()
        return torch.tensor(made, **more)

    def empty(*size: Any, **more: Any) -> torch.Tensor:
        if more.get("dtype") not in _INTEGER_DTYPES:
            return zeros(*size, **more)
        return filled(size[0] if isinstance(size[0], tuple | list) else size, 0, **more)

    def chosen(mask: torch.Tensor, *values: Any) -> Any:
        return where(mask, *(torch.tensor(value) if type(value) is int else value for value in values))

    def written(tensor: torch.Tensor, index: Any, value: Any) -> None:
        if _known_value(tensor) is None:
            put(tensor, _mask_as_indices(tensor, index, number), value)
            return
        with fake_tensor.unset_fake_temporarily():
            _known_value(tensor)[_with_known_values(index)] = _with_known_values(value)

    fake_tensor.CONSTANT_NUMEL_LIMIT = _MAX_KNOWN_ELEMENTS
    torch.arange, torch.full, torch.zeros, torch.where = counted, filled, empty, chosen
    torch.Tensor.item = lambda self: read(self) if _known_value(self) is not None else 0.0
    torch.Tensor.__getitem__ = lambda self, index: get(self, _mask_as_indices(self, index, number))
    torch.Tensor.__setitem__ = written
    try:
        yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT, torch.Tensor.item = limit, read
        torch.arange, torch.full, torch.zeros, torch.where = arange, full, zeros, where
        torch.Tensor.__getitem__, torch.Tensor.__setitem__ = get, put


def _known_value(tensor: Any) -> Any:
    """The numbers of a fake tensor that are known."""
    return getattr(tensor, "constant", None)


def _with_known_values(index: Any) -> Any:
    """An index or a value, with the numbers of its tensors."""
    if isinstance(index, tuple):
        return tuple(_with_known_values(part) for part in index)
    if isinstance(index, slice):
        return slice(*(None if end is None else int(end) for end in (index.start, index.stop, index.step)))
    return index if _known_value(index) is None else _known_value(index)


def _mask_as_indices(tensor: torch.Tensor, index: Any, number: int) -> Any:
    """What a mask names, as indices."""
    mask = index[0] if isinstance(index, tuple) and index else index
    if not (isinstance(mask, fake_tensor.FakeTensor) and mask.dtype == torch.bool) or _known_value(tensor) is not None:
        return index
    each = tensor.shape[-1] if mask.dim() == tensor.dim() else 1
    if mask.constant is None:
        named = number * each
    else:
        with fake_tensor.unset_fake_temporarily():
            named = mask.constant.nonzero().shape[0]
    return tuple(torch.empty(named, dtype=torch.int64) for _ in range(mask.dim()))


@contextlib.contextmanager
def read_scalars_as_zero() -> Iterator[None]:
    """Fake tensors have no values: metrics are read as zero, and a gradient is never known to be one. Conditions and
    whole numbers are the tracker's to answer or refuse."""
    read, equal = torch.Tensor.item, torch.equal

    def unread(tensor: torch.Tensor) -> Any:
        return 0.0 if tensor.dtype.is_floating_point else read(tensor)

    torch.Tensor.item, torch.equal = unread, lambda *_: False
    try:
        yield
    finally:
        torch.Tensor.item, torch.equal = read, equal
