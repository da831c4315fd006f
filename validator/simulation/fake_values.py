"""Values of fake tensors: small integer tensors keep theirs, as classes choose shapes by them; scalars of all others
are read as zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor

# Tensors of up to so many elements keep their values.
_MAX_KNOWN_ELEMENTS = 1 << 22
_INTEGER_DTYPES = (torch.int32, torch.int64)


_ARANGE, _FULL, _ZEROS, _WHERE = torch.arange, torch.full, torch.zeros, torch.where
_ITEM, _GET, _SET = torch.Tensor.item, torch.Tensor.__getitem__, torch.Tensor.__setitem__


def _arange(*bounds: Any, **more: Any) -> torch.Tensor:
    whole = not more.get("dtype") and bounds and all(type(bound) is int for bound in bounds)
    if not whole or not range(*bounds):
        return _ARANGE(*bounds, **more)
    return torch.tensor(list(range(*bounds)), device=more.get("device"))


def _full(size: Any, fill_value: Any, **more: Any) -> torch.Tensor:
    sizes = [int(each) for each in size]
    if more.get("dtype") not in _INTEGER_DTYPES:
        return _FULL(sizes, fill_value, **more)
    with fake_tensor.unset_fake_temporarily():
        values = _FULL(sizes, fill_value, dtype=more["dtype"]).tolist()
    return torch.tensor(values, **more)


def _zeros(*size: Any, **more: Any) -> torch.Tensor:
    if more.get("dtype") not in _INTEGER_DTYPES:
        return _ZEROS(*size, **more)
    return _full(size[0] if isinstance(size[0], tuple | list) else size, 0, **more)


def _where(mask: torch.Tensor, *values: Any) -> Any:
    return _WHERE(mask, *(torch.tensor(value) if type(value) is int else value for value in values))


@contextlib.contextmanager
def keep_small_int_values(number: int) -> Iterator[None]:
    """Make small integer tensors keep their values under FakeTensorMode. A boolean mask whose values are unknown is
    taken to select `number` tokens."""

    def get(tensor: torch.Tensor, index: Any) -> Any:
        return _GET(tensor, _mask_as_indices(tensor, index, number))

    def put(tensor: torch.Tensor, index: Any, value: Any) -> None:
        if _known_value(tensor) is None:
            _SET(tensor, _mask_as_indices(tensor, index, number), value)
            return
        with fake_tensor.unset_fake_temporarily():
            _known_value(tensor)[_with_known_values(index)] = _with_known_values(value)

    def item(tensor: torch.Tensor) -> Any:
        return _ITEM(tensor) if _known_value(tensor) is not None else 0.0

    with (
        mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MAX_KNOWN_ELEMENTS),
        mock.patch.multiple(torch, arange=_arange, full=_full, zeros=_zeros, where=_where),
        mock.patch.multiple(torch.Tensor, item=item, __getitem__=get, __setitem__=put),
    ):
        yield


def _known_value(tensor: Any) -> Any:
    """Return the values of a fake tensor that are known; None if they are not."""
    return getattr(tensor, "constant", None)


def _with_known_values(index: Any) -> Any:
    """Return an index or a value with the known values in place of its fake tensors."""
    if isinstance(index, tuple):
        return tuple(_with_known_values(part) for part in index)
    if isinstance(index, slice):
        return slice(*(None if end is None else int(end) for end in (index.start, index.stop, index.step)))
    return index if _known_value(index) is None else _known_value(index)


def _mask_as_indices(tensor: torch.Tensor, index: Any, number: int) -> Any:
    """Return indices of as many elements as a mask selects."""
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


def _never_equal(*_tensors: torch.Tensor) -> bool:
    return False


@contextlib.contextmanager
def read_scalars_as_zero() -> Iterator[None]:
    """Make metrics read as zero, and gradients never equal, as fake tensors have no values. Conditions and integers are
    the tracker's to answer or refuse."""

    def item(tensor: torch.Tensor) -> Any:
        return 0.0 if tensor.dtype.is_floating_point else _ITEM(tensor)

    with mock.patch.object(torch.Tensor, "item", item), mock.patch.object(torch, "equal", _never_equal):
        yield
