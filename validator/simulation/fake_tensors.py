"""Makes fake tensors behave like tensors on CUDA: operators, attention, autocast, workspace of kernels, and the values
of small integer tensors.

The fake tensors have the device type CPU. transformers' classes choose shapes by the values of small integer tensors,
so these tensors keep their values. Scalars of all other tensors are read as zero."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch.nn import functional

Tensor: TypeAlias = torch.Tensor


def _autocast_inputs(*tensors: Tensor) -> list[Tensor]:
    """Return the inputs of a matmul after autocast: in bf16 if autocast is on, otherwise unchanged."""
    if not torch.is_autocast_enabled("cpu"):
        return list(tensors)
    return [tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in tensors]


# The widest heads that FlashAttention accepts.
_MAX_FLASH_HEAD_DIM = 256


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Compute attention with the kernel that CUDA would choose. Without a mask the kernel is FlashAttention-2, which
    saves q, k, v, its output and the fp32 log-sum-exp. With a mask, or with value heads of another width, the kernel is
    the memory-efficient one."""
    q, k, v = _autocast_inputs(query, key, value)
    wide = attn_mask is None and q.shape[-1] > _MAX_FLASH_HEAD_DIM
    if q.shape[1] != k.shape[1] and (wide or not enable_gqa):
        return _math_attention(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is None and q.shape[-1] == v.shape[-1] <= _MAX_FLASH_HEAD_DIM:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    if attn_mask is None:
        return efficient(q, k, v, None, True, dropout_p, is_causal, scale=scale)[0]
    if attn_mask.dtype == torch.bool:  # CUDA turns the bool mask into an additive one of the query's dtype
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype)
    attn_mask = attn_mask.to(q.dtype)  # autocast's way with an additive one
    bias = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return efficient(q, k, v, bias, True, dropout_p, False, scale=scale)[0]


def _math_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool,
             scale: float | None, enable_gqa: bool) -> Tensor:  # fmt: skip
    """Compute attention from the fp32 scores of all pairs of tokens. This is the only kernel for grouped-query heads
    that are too wide for FlashAttention (transformers pull request 46960), or whose keys are shared by broadcasting
    (PyTorch, native attention, _scaled_dot_product_attention_math)."""
    math = torch.ops.aten._scaled_dot_product_attention_math
    with torch.autocast("cpu", enabled=False):  # CUDA's autocast does not reach into this operator
        out: Tensor = math(query, key, value, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa)[0]
    return out


def flash_attention(_module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, dropout: float = 0.0,
           scaling: float | None = None, **_: Any) -> tuple[Tensor, None]:  # fmt: skip
    """Compute attention as the flash-attn package does, which works in half precision only: fp32 inputs are converted
    to bf16. The mask is ignored."""
    q, k, v = _autocast_inputs(query, key, value)
    if q.dtype == torch.float32:
        q, k, v = (tensor.to(torch.bfloat16) for tensor in (q, k, v))
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True, scale=scaling)[0]
    return out.transpose(1, 2), None


def _layer_norm(entering: Tensor, shape: Any, weight: Any = None, bias: Any = None,
                eps: float = 1e-5) -> Tensor:  # fmt: skip
    """Compute LayerNorm, in fp32 if autocast is on, as CUDA's autocast does (PyTorch, Automatic Mixed Precision, ops
    that autocast to float32)."""
    if torch.is_autocast_enabled("cpu"):
        entering, weight, bias = (None if each is None else each.float() for each in (entering, weight, bias))
    return torch.layer_norm(entering, shape, weight, bias, eps, True)


_TORCH_POW = torch.pow


def _pow(base: Any, exponent: Any, **options: Any) -> Tensor:
    """Compute a power, in fp32 if autocast is on, as CUDA's autocast does (see `_layer_norm`)."""
    raised = isinstance(base, torch.Tensor) and base.is_floating_point() and torch.is_autocast_enabled("cpu")
    power: Tensor = _TORCH_POW(base.float() if raised else base, exponent, **options)
    return power


def _dropout(entering: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Compute dropout with CUDA's mask of one byte per element. The CPU's kernel would save a mask in the dtype of its
    input."""
    if not training or p == 0 or inplace:
        return torch.dropout(entering, p, training)
    dropped: Tensor = torch.ops.aten.native_dropout(entering, p, True)[0]
    return dropped


class _GroupedMatmul(torch.autograd.Function):
    """Allocates the tensors of a grouped matmul, in the forward and the backward pass, without computing them."""

    @staticmethod
    def forward(context: Any, rows: Tensor, weights: Tensor) -> Tensor:
        context.save_for_backward(rows, weights)
        return rows.new_empty(rows.shape[0], weights.shape[-1])

    @staticmethod
    def backward(context: Any, _gradient: Tensor) -> tuple[Tensor, Tensor]:
        rows, weights = context.saved_tensors
        return torch.empty_like(rows), torch.empty_like(weights)


def _grouped_mm(rows: Tensor, weights: Tensor, **options: Any) -> Tensor:
    """Compute the grouped matmul of experts. On CUDA fp32 inputs are allowed, too, with one matmul for each group
    (aten, GroupedMMUtils.h). The fake kernel refuses fp32, so `_GroupedMatmul` stands in."""
    if rows.dtype == torch.bfloat16:
        return torch._grouped_mm(rows, weights, **options)
    product: Tensor = _GroupedMatmul.apply(rows, weights)
    return product


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Within the `with` block, replace CPU operators by versions that allocate what CUDA's operators do. The
    replacement affects models that call the operators through torch.nn.functional."""
    operators = {"scaled_dot_product_attention": scaled_dot_product_attention, "layer_norm": _layer_norm,
                 "dropout": _dropout, "grouped_mm": _grouped_mm}  # fmt: skip
    replaced: dict[str, Any] = {name: operator for name, operator in operators.items() if hasattr(functional, name)}
    with mock.patch.multiple(functional, **replaced), mock.patch.object(torch, "pow", _pow):
        yield


def kernel_workspace(name: str, args: Sequence[Any]) -> int:
    """Bytes that a kernel allocates and frees while it runs; 0 for most operators. Flash attention's backward pass
    needs an fp32 query gradient, softmax sums, and expanded key and value gradients. A 4-bit matmul needs the
    dequantized weight."""
    if name == "_scaled_dot_product_flash_attention_backward":
        q, k = args[1], args[2]
        batch, heads, length, width = q.shape
        rows, columns = -(-length // 128) * 128, -(-width // 32) * 32
        expanded = 2 * q.element_size() * batch * k.shape[2] * heads * width if k.shape[1] != heads else 0
        return int(4 * batch * heads * rows * (columns + 1) + expanded)
    if name == "gemm_4bit":
        outputs, inputs = args[2]
        return int(2 * outputs * inputs + 4 * (outputs * inputs // 64))
    return 0


# Integer tensors of up to so many elements keep their values.
_MAX_KNOWN_ELEMENTS = 1 << 22
_INTEGER_DTYPES = (torch.int32, torch.int64)
_ARANGE, _FULL, _ZEROS, _WHERE = torch.arange, torch.full, torch.zeros, torch.where
_ITEM, _GET, _SET = Tensor.item, Tensor.__getitem__, Tensor.__setitem__


def _arange(*bounds: Any, **options: Any) -> Tensor:
    has_int_bounds = not options.get("dtype") and bounds and all(type(bound) is int for bound in bounds)
    if not has_int_bounds or not range(*bounds):
        return _ARANGE(*bounds, **options)
    return torch.tensor(list(range(*bounds)), device=options.get("device"))


def _full(size: Any, fill_value: Any, **options: Any) -> Tensor:
    sizes = [int(each) for each in size]
    if options.get("dtype") not in _INTEGER_DTYPES:
        return _FULL(sizes, fill_value, **options)
    with fake_tensor.unset_fake_temporarily():
        values = _FULL(sizes, fill_value, dtype=options["dtype"]).tolist()
    return torch.tensor(values, **options)


def _zeros(*size: Any, **options: Any) -> Tensor:
    if options.get("dtype") not in _INTEGER_DTYPES:
        return _ZEROS(*size, **options)
    return _full(size[0] if isinstance(size[0], tuple | list) else size, 0, **options)


def _where(mask: Tensor, *values: Any) -> Any:
    return _WHERE(mask, *(torch.tensor(value) if type(value) is int else value for value in values))


@contextlib.contextmanager
def keep_small_int_values(number: int) -> Iterator[None]:
    """Within the `with` block, make small integer tensors keep their values under FakeTensorMode. A boolean mask
    without known values is assumed to select `number` tokens."""

    def get(tensor: Tensor, index: Any) -> Any:
        return _GET(tensor, _mask_as_indices(tensor, index, number))

    def put(tensor: Tensor, index: Any, value: Any) -> None:
        if _known_value(tensor) is None:
            _SET(tensor, _mask_as_indices(tensor, index, number), value)
            return
        with fake_tensor.unset_fake_temporarily():
            _known_value(tensor)[_with_known_values(index)] = _with_known_values(value)

    def item(tensor: Tensor) -> Any:
        return _ITEM(tensor) if _known_value(tensor) is not None else 0.0

    with (
        mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _MAX_KNOWN_ELEMENTS),
        mock.patch.multiple(torch, arange=_arange, full=_full, zeros=_zeros, where=_where),
        mock.patch.multiple(Tensor, item=item, __getitem__=get, __setitem__=put),
    ):
        yield


def _known_value(tensor: Any) -> Any:
    """Return the real values that FakeTensorMode keeps for a small fake tensor; None if it keeps no values for this
    tensor."""
    return getattr(tensor, "constant", None)


def _with_known_values(index: Any) -> Any:
    """Return the index, or the value to assign, with the values of its fake tensors in place of these tensors. A fake
    tensor without known values stays."""
    if isinstance(index, tuple):
        return tuple(_with_known_values(part) for part in index)
    if isinstance(index, slice):
        return slice(*(None if end is None else int(end) for end in (index.start, index.stop, index.step)))
    return index if _known_value(index) is None else _known_value(index)


def _mask_as_indices(tensor: Tensor, index: Any, number: int) -> Any:
    """Convert a boolean mask into indices of as many elements as the mask selects, because a fake mask cannot select.
    If the values of the mask are not known, `number` tokens are assumed. If `index` is no boolean mask, return `index`
    unchanged."""
    mask = index[0] if isinstance(index, tuple) and index else index
    if not (isinstance(mask, fake_tensor.FakeTensor) and mask.dtype == torch.bool) or _known_value(tensor) is not None:
        return index
    width = tensor.shape[-1] if mask.dim() == tensor.dim() else 1
    if mask.constant is None:
        count = number * width
    else:
        with fake_tensor.unset_fake_temporarily():
            count = mask.constant.nonzero().shape[0]
    return tuple(torch.empty(count, dtype=torch.int64) for _ in range(mask.dim()))


@contextlib.contextmanager
def read_scalars_as_zero() -> Iterator[None]:
    """Within the `with` block, read every float scalar as zero and every comparison by torch.equal as False, because
    fake tensors have no values. The tracker answers other conditions, and refuses integers."""

    def item(tensor: Tensor) -> Any:
        return 0.0 if tensor.dtype.is_floating_point else _ITEM(tensor)

    def equal(*_tensors: Tensor) -> bool:
        return False

    with mock.patch.object(Tensor, "item", item), mock.patch.object(torch, "equal", equal):
        yield
