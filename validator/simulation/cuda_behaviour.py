"""Operators, attention, autocast and kernel workspace as on CUDA, though the tensors here claim to be on the CPU.
Also what is set before transformers and LLaMA-Factory are imported, so that they work beside a CPU build of
torch."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias
from unittest import mock

import torch
from torch.nn import functional

_LIBRARY_VARIABLES = {
    "DISABLE_VERSION_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "LLAMAFACTORY_VERBOSITY": "ERROR",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_DISABLE_TORCH_CHECK": "1",
}


@functools.cache
def prepare_libraries() -> None:
    """Prepare the process, once: quiet libraries, a torchvision that imports, one autocast state for all devices."""
    for name, value in _LIBRARY_VARIABLES.items():
        os.environ.setdefault(name, value)
    warnings.filterwarnings("ignore")
    _import_torchvision()
    enabled = torch.is_autocast_enabled
    torch.is_autocast_enabled = lambda _device_type=None: enabled("cpu")


def _import_torchvision() -> None:
    """Import torchvision if it is there. One that was built for another torch fails when it registers its operators,
    which nothing here calls: it is imported again without that. Models of text do not need it."""
    register = torch.library.register_fake

    def register_others(operator: Any, *args: Any, **more: Any) -> Any:
        if isinstance(operator, str) and operator.startswith("torchvision::"):
            return lambda function: function
        return register(operator, *args, **more)

    with contextlib.suppress(ModuleNotFoundError):
        try:
            import torchvision
        except ModuleNotFoundError:
            raise
        except Exception:
            for name in [name for name in sys.modules if name.startswith("torchvision")]:
                del sys.modules[name]
            with mock.patch.object(torch.library, "register_fake", register_others):
                import torchvision  # noqa: F401


class Bf16Autocast(contextlib.ContextDecorator):
    """bf16 autocast. The tensors claim to be on the cpu, whose autocast lists agree with CUDA's for the operators of
    these models; whoever asks for the state of CUDA's autocast (PEFT, bitsandbytes, checkpoint) gets this one's."""

    def __enter__(self) -> None:
        self.entered = torch.autocast("cpu", dtype=torch.bfloat16)
        self.entered.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self.entered.__exit__(*raised)


def wrap_in_autocast(model: Any) -> None:
    """accelerate.Accelerator.prepare_model with mixed_precision="bf16"."""
    from accelerate.utils.operations import convert_outputs_to_fp32

    model.forward = types.MethodType(Bf16Autocast()(model.forward.__func__), model)
    model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__func__), model)


def autocast_inputs(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the inputs of a matmul as autocast casts them."""
    if not torch.is_autocast_enabled():
        return list(tensors)
    return [tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in tensors]


Tensor: TypeAlias = torch.Tensor
# Heads that FlashAttention takes at most.
_MAX_FLASH_HEAD_DIM = 256
# transformers looks for a package where a name holds "flash".
_ATTENTION_IMPLEMENTATIONS = {"sdpa": "sdpa", "eager": "eager", "fa2": "simulated_fa2"}


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention by the kernel that CUDA would take. Without a mask that is FlashAttention-2, which keeps q, k, v, its
    output and the fp32 log-sum-exp; with a mask, or with heads of unequal width, the memory-efficient kernel."""
    q, k, v = autocast_inputs(query, key, value)
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
    """Attention with the scores of all pairs of tokens, in fp32. No other kernel takes heads that share keys and are
    too wide for FlashAttention (transformers pull request 46960), or that share keys by broadcasting (PyTorch, native
    attention, _scaled_dot_product_attention_math)."""
    math = torch.ops.aten._scaled_dot_product_attention_math
    with torch.autocast("cpu", enabled=False):  # as CUDA's, which does not reach into the product
        out: Tensor = math(query, key, value, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa)[0]
    return out


def _flash_attention(_module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, dropout: float = 0.0,
           scaling: float | None = None, **_: Any) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as the flash-attn package computes it, in half precision only."""
    q, k, v = autocast_inputs(query, key, value)
    if q.dtype == torch.float32:
        q, k, v = (tensor.to(torch.bfloat16) for tensor in (q, k, v))
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True, scale=scaling)[0]
    return out.transpose(1, 2), None


def _skips_mask(padded: bool, _mask: Any, query_length: int, kv_length: int, _offset: int = 0,
                window: int | None = None) -> bool:  # fmt: skip
    """True if no mask is passed (masking_utils._ignore_causal_mask_sdpa). Whether there is padding is said here, as a
    fake tensor's values cannot say it."""
    return not padded and query_length == kv_length and (window is None or kv_length < window)


def install_attention(attention: str, padded: bool) -> str:
    """Register the kernels with transformers, and return its name of the implementation.

    transformers takes a fake tensor for a trace and would build a mask. A real run without padding passes no mask and
    sets `is_causal`; a run with a mask does not search for packed sequences. Older releases build masks in each class;
    there the tracker answers, and no class leaves the mask out for the simulator's flash attention."""
    try:
        from transformers import masking_utils
    except ImportError:
        return _ATTENTION_IMPLEMENTATIONS[attention]
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if _ATTENTION_IMPLEMENTATIONS["fa2"] not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION_IMPLEMENTATIONS["fa2"], _flash_attention)
        masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION_IMPLEMENTATIONS["fa2"], lambda *_, **__: None)
    masking_utils.is_tracing = lambda *_, **__: False
    masking_utils._ignore_causal_mask_sdpa = functools.partial(_skips_mask, padded)
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    return _ATTENTION_IMPLEMENTATIONS[attention]


def _layer_norm(entering: torch.Tensor, shape: Any, weight: Any = None, bias: Any = None,
                eps: float = 1e-5) -> torch.Tensor:  # fmt: skip
    """CUDA's autocast gives it fp32 (PyTorch, Automatic Mixed Precision, ops that autocast to float32)."""
    if torch.is_autocast_enabled("cpu"):
        entering, weight, bias = (None if each is None else each.float() for each in (entering, weight, bias))
    return torch.layer_norm(entering, shape, weight, bias, eps, True)


_TORCH_POW = torch.pow


def _pow(base: Any, exponent: Any, **more: Any) -> torch.Tensor:
    """CUDA's autocast gives it fp32 (as above)."""
    raised = isinstance(base, torch.Tensor) and base.is_floating_point() and torch.is_autocast_enabled("cpu")
    power: torch.Tensor = _TORCH_POW(base.float() if raised else base, exponent, **more)
    return power


def _dropout(entering: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """CUDA's kernel keeps a mask of one byte an element; the CPU's keeps one in the input's type."""
    if not training or p == 0 or inplace:
        return torch.dropout(entering, p, training)
    dropped: torch.Tensor = torch.ops.aten.native_dropout(entering, p, True)[0]
    return dropped


class _GroupedMatmul(torch.autograd.Function):
    """Allocations of a matmul of each expert's rows, forward and backward."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(rows, weights)
        return rows.new_empty(rows.shape[0], weights.shape[-1])

    @staticmethod
    def backward(context: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, weights = context.saved_tensors
        return torch.empty_like(rows), torch.empty_like(weights)


def _grouped_mm(rows: torch.Tensor, weights: torch.Tensor, **more: Any) -> torch.Tensor:
    """Grouped matmul of experts. CUDA takes fp32, too, by one matmul for each group (aten, GroupedMMUtils.h), which the
    kernel's fake twin refuses."""
    if rows.dtype == torch.bfloat16:
        return torch._grouped_mm(rows, weights, **more)
    made: torch.Tensor = _GroupedMatmul.apply(rows, weights)
    return made


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Put CUDA's operators in the place of the CPU's, for models that call them by torch.nn.functional."""
    operators = {"scaled_dot_product_attention": scaled_dot_product_attention, "layer_norm": _layer_norm,
                 "dropout": _dropout, "grouped_mm": _grouped_mm}  # fmt: skip
    known: dict[str, Any] = {name: operator for name, operator in operators.items() if hasattr(functional, name)}
    with mock.patch.multiple(functional, **known), mock.patch.object(torch, "pow", _pow):
        yield


def kernel_workspace(name: str, args: Sequence[Any]) -> int:
    """Bytes that a kernel takes and gives back: flash attention's fp32 query gradient, softmax sums and expanded key
    and value gradients; the dequantized weight of a 4-bit matmul."""
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
