"""Attention on the kernels that CUDA tensors take, and the masks that the real run makes."""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import torch

from validator.simulate.autocast import cast

Tensor: TypeAlias = torch.Tensor
# Heads that FlashAttention takes at most.
_WIDEST = 256
# transformers looks for a package where a name holds "flash".
_NAMES = {"sdpa": "sdpa", "eager": "eager", "fa2": "simulated_fa2"}


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """As CUDA does it. Without a mask it is FlashAttention-2, which keeps q, k, v, its output and the fp32
    log-sum-exp; with one, or with heads of unequal width, PyTorch's own rule takes the memory-efficient kernel."""
    q, k, v = cast(query, key, value)
    wide = attn_mask is None and q.shape[-1] > _WIDEST
    if q.shape[1] != k.shape[1] and (wide or not enable_gqa):
        return _written(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if attn_mask is None and q.shape[-1] == v.shape[-1] <= _WIDEST:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    if attn_mask is None:
        return efficient(q, k, v, None, True, dropout_p, is_causal, scale=scale)[0]
    if attn_mask.dtype == torch.bool:  # CUDA turns the bool mask into an additive one of the query's dtype
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype)
    attn_mask = attn_mask.to(q.dtype)  # autocast's way with an additive one
    bias = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return efficient(q, k, v, bias, True, dropout_p, False, scale=scale)[0]


def _written(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool,
             scale: float | None, enable_gqa: bool) -> Tensor:  # fmt: skip
    """Scores of all pairs of tokens, in fp32: what is left where heads share keys and are wider than FlashAttention
    takes, which the memory-efficient kernel does not know (transformers pull request 46960), or share them by
    broadcasting, which neither knows (PyTorch, native attention, _scaled_dot_product_attention_math)."""
    math = torch.ops.aten._scaled_dot_product_attention_math
    with torch.autocast("cpu", enabled=False):  # as CUDA's, which does not reach into the product
        out: Tensor = math(query, key, value, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa)[0]
    return out


def _flash(_module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, dropout: float = 0.0,
           scaling: float | None = None, **_: Any) -> tuple[Tensor, None]:  # fmt: skip
    """The flash-attn package, which takes half precision only."""
    q, k, v = cast(query, key, value)
    if q.dtype == torch.float32:
        q, k, v = (tensor.to(torch.bfloat16) for tensor in (q, k, v))
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True, scale=scaling)[0]
    return out.transpose(1, 2), None


def _skips_mask(padded: bool, _mask: Any, query_length: int, kv_length: int, _offset: int = 0,
                window: int | None = None) -> bool:  # fmt: skip
    """masking_utils._ignore_causal_mask_sdpa, told whether there is padding: a FakeTensor's values cannot say it."""
    return not padded and query_length == kv_length and (window is None or kv_length < window)


def install(attention: str, padded: bool) -> str:
    """Registers the kernels with transformers. Returns its name of the implementation.

    A FakeTensor is not a trace: without padding the real run skips the mask and lets SDPA be causal; packed sequences
    are not looked for when a mask is passed. In releases that do not make masks in one place each class asks the mask
    itself, which the tracker answers, and none leaves it out for the simulator's flash attention."""
    try:
        from transformers import masking_utils
    except ImportError:
        return _NAMES[attention]
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if _NAMES["fa2"] not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register(_NAMES["fa2"], _flash)
        masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(_NAMES["fa2"], lambda *_, **__: None)
    masking_utils.is_tracing = lambda *_, **__: False
    masking_utils._ignore_causal_mask_sdpa = functools.partial(_skips_mask, padded)
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    return _NAMES[attention]
