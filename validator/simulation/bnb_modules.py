"""Builds the quantized linear modules of bitsandbytes from tensors that have the right shapes but no values."""

from __future__ import annotations

from typing import Any

import bitsandbytes as bnb
import torch
from bitsandbytes.autograd import _functions
from bitsandbytes.functional import QuantState
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

# Elements that share a scale, and scales that share another under double quantization (quantize_4bit).
_WEIGHT_BLOCK, _SCALE_BLOCK = 64, 256
Tensors = list[torch.Tensor]


def quantize_linears(model: Any, bits: int, double: bool, kind: str, real: bool) -> Tensors:
    """Replace every linear module except the output layer by a quantized module, as transformers does when it loads a
    model in 4 or 8 bits. Return the tensors of scales and codes, which are no parameters. `double` and `kind` are the
    settings of 4-bit quantization (double quantization, quantization type). If `real` is true, the weights have values,
    and 4-bit weights are computed from them."""
    extra: Tensors = []
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child is not head:
                replacement, tensors = _linear_4bit(child, double, kind, real) if bits == 4 else _linear_8bit(child)
                replacement.bias = child.bias
                setattr(module, name, replacement)
                extra += tensors
    setattr(model, f"is_loaded_in_{bits}bit", True)
    model.quantization_method = "bitsandbytes"
    return extra


def _without_values(make: Any, *args: Any, **options: Any) -> Any:
    """Create a module of the class `make` with these arguments and without bias on the meta device, so that its initial
    weights take no memory."""
    with unset_fake_temporarily(), torch.device("meta"):
        return make(*args, bias=False, **options)


def _linear_4bit(linear: nn.Linear, double: bool, kind: str, real: bool) -> tuple[nn.Module, Tensors]:
    half = torch.bfloat16
    options = {"compress_statistics": double, "quant_type": kind, "quant_storage": half}
    module = _without_values(bnb.nn.Linear4bit, linear.in_features, linear.out_features, compute_dtype=half, **options)
    if real:
        copy = linear.weight.data.clone()
        module.weight = bnb.nn.Params4bit(copy, requires_grad=False, module=module, **options).to("cpu")
        state = module.weight.quant_state
    else:
        state = _quant_state(linear, double, kind)
        module.weight = _packed_weight(linear, state, double, kind)
    module.quant_state = state
    scales = [state.state2.absmax, state.state2.code] if state.state2 is not None else []
    return module, [tensor for tensor in (state.absmax, state.code, state.offset, *scales) if tensor is not None]


def _quant_state(linear: nn.Linear, double: bool, kind: str) -> Any:
    """Return the state that bitsandbytes.functional.quantize_4bit creates: one fp32 scale for each block of weights.
    With double quantization (`double`) each block has a scale of one byte, and blocks of scales have an fp32 scale.
    `kind` is the quantization type, such as nf4."""
    blocks = -(-linear.weight.numel() // _WEIGHT_BLOCK)
    scales = torch.empty(-(-blocks // _SCALE_BLOCK), dtype=torch.float32) if double else None
    return QuantState(
        absmax=torch.empty(blocks, dtype=torch.uint8 if double else torch.float32),
        shape=torch.Size((linear.out_features, linear.in_features)),
        code=torch.empty(16, dtype=torch.float32),
        blocksize=_WEIGHT_BLOCK,
        quant_type=kind,
        dtype=torch.bfloat16,
        offset=torch.empty(()) if double else None,
        state2=QuantState(absmax=scales, code=torch.empty(256), blocksize=_SCALE_BLOCK, dtype=torch.float32)
        if double
        else None,
    )


def _packed_weight(linear: nn.Linear, state: Any, double: bool, kind: str) -> Any:
    """Return the 4-bit weight of a linear module, without values, with the attributes that bitsandbytes reads from its
    own class. The weight has the type bf16, and the two bytes of one element hold four 4-bit values. `double` and
    `kind` are the settings of the quantization."""
    half = torch.bfloat16
    weight: Any = nn.Parameter(torch.empty(linear.weight.numel() // 4, 1, dtype=half), requires_grad=False)
    weight.quant_state, weight.bnb_quantized, weight.compress_statistics = state, True, double
    weight.quant_type, weight.blocksize, weight.quant_storage, weight.module = kind, _WEIGHT_BLOCK, half, None
    return weight


def _linear_8bit(linear: nn.Linear) -> tuple[nn.Module, Tensors]:
    """Return an 8-bit module in place of a linear module, and its scales. The module runs the operations that
    bitsandbytes runs on CUDA, not those for CPUs. The 16-bit product of the outlier columns is not simulated, because
    these columns are few."""
    _functions.MatMul8bitFp = _functions.MatMul8bitLt  # the path of CPUs
    module = _without_values(bnb.nn.Linear8bitLt, linear.in_features, linear.out_features, has_fp16_weights=False)
    shape = (linear.out_features, linear.in_features)
    weight: Any = nn.Parameter(torch.empty(shape, dtype=torch.int8), requires_grad=False)
    weight.CB, scales = None, torch.empty(linear.out_features)
    module.state.CB, module.state.SCB, module.weight = weight.data, scales, weight
    return module, [scales]
