"""bitsandbytes' quantized linear modules and its 8-bit AdamW, made of tensors of the right shapes only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

WEIGHT_BLOCK, SCALE_BLOCK = 64, 256
Tensors = list[torch.Tensor]


def quantize_linears(model: Any, bits: int, double: bool, kind: str, real: bool) -> Tensors:
    """Replaces every linear module but the output layer, as transformers does when it loads a model in 4 or 8 bits.
    Returns the tensors that are no parameters: scales and codes. `real` computes the weights."""
    extra: Tensors = []
    for module, name, child in _quantized_linears(model):
        if bits == 4:
            made, tensors = _linear_4bit(child, double, kind, real)
        else:
            made, tensors = _linear_8bit(child)
        made.bias = child.bias
        setattr(module, name, made)
        extra += tensors
    setattr(model, f"is_loaded_in_{bits}bit", True)
    model.quantization_method = "bitsandbytes"
    return extra


def _quantized_linears(model: Any) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """(parent, name, module)"""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child is not head:
                yield module, name, child


def _without_values(make: Any, *args: Any, **more: Any) -> Any:
    """The module on the meta device: its own initial weights are dropped at once."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily(), torch.device("meta"):
        return make(*args, bias=False, **more)


def _linear_4bit(linear: nn.Linear, double: bool, kind: str, real: bool) -> tuple[nn.Module, Tensors]:
    import bitsandbytes as bnb

    half = torch.bfloat16
    of = {"compress_statistics": double, "quant_type": kind, "quant_storage": half}
    made = _without_values(bnb.nn.Linear4bit, linear.in_features, linear.out_features, compute_dtype=half, **of)
    if real:
        copy = linear.weight.data.clone()
        made.weight = bnb.nn.Params4bit(copy, requires_grad=False, module=made, **of).to("cpu")
        state = made.weight.quant_state
    else:
        state = _quant_state(linear, double, kind)
        made.weight = _packed_weight(linear, state, double, kind)
    made.quant_state = state
    scales = [state.state2.absmax, state.state2.code] if state.state2 is not None else []
    return made, [tensor for tensor in (state.absmax, state.code, state.offset, *scales) if tensor is not None]


def _quant_state(linear: nn.Linear, double: bool, kind: str) -> Any:
    """bitsandbytes.functional.quantize_4bit: one scale a block; with double quantization one byte and a scale of
    scales."""
    from bitsandbytes.functional import QuantState

    blocks = -(-linear.weight.numel() // WEIGHT_BLOCK)
    return QuantState(
        absmax=torch.empty(blocks, dtype=torch.uint8 if double else torch.float32),
        shape=torch.Size((linear.out_features, linear.in_features)),
        code=torch.empty(16, dtype=torch.float32),
        blocksize=WEIGHT_BLOCK,
        quant_type=kind,
        dtype=torch.bfloat16,
        offset=torch.empty(()) if double else None,
        state2=_scale_state(blocks) if double else None,
    )


def _scale_state(blocks: int) -> Any:
    from bitsandbytes.functional import QuantState

    scales = torch.empty(-(-blocks // SCALE_BLOCK), dtype=torch.float32)
    return QuantState(absmax=scales, code=torch.empty(256), blocksize=SCALE_BLOCK, dtype=torch.float32)


def _packed_weight(linear: nn.Linear, state: Any, double: bool, kind: str) -> Any:
    """Four values in the bytes of one bf16 element, with the attributes that bitsandbytes reads off its own class."""
    half = torch.bfloat16
    weight: Any = nn.Parameter(torch.empty(linear.weight.numel() // 4, 1, dtype=half), requires_grad=False)
    weight.quant_state, weight.bnb_quantized, weight.compress_statistics = state, True, double
    weight.quant_type, weight.blocksize, weight.quant_storage, weight.module = kind, WEIGHT_BLOCK, half, None
    return weight


def _linear_8bit(linear: nn.Linear) -> tuple[nn.Module, Tensors]:
    """On the path that CUDA takes, without outliers: these are few."""
    import bitsandbytes as bnb
    from bitsandbytes.autograd import _functions

    _functions.MatMul8bitFp = _functions.MatMul8bitLt  # the path of CPUs
    made = _without_values(bnb.nn.Linear8bitLt, linear.in_features, linear.out_features, has_fp16_weights=False)
    shape = (linear.out_features, linear.in_features)
    weight: Any = nn.Parameter(torch.empty(shape, dtype=torch.int8), requires_grad=False)
    weight.CB, scales = None, torch.empty(linear.out_features)
    made.state.CB, made.state.SCB, made.weight = weight.data, scales, weight
    return made, [scales]


# bitsandbytes quantizes the moments of tensors that have so many elements or more, in blocks.
_MIN_QUANTIZED_ELEMENTS, _MOMENT_BLOCK = 4096, 256


class AdamW8bit(torch.optim.Optimizer):
    """The states of bitsandbytes' 8-bit AdamW: two uint8 moments and an fp32 scale for each block; fp32 moments for
    small tensors and for embeddings, which transformers' Trainer excepts (`precise`: their ids). The update works in
    place."""

    def __init__(self, trained: Iterable[torch.Tensor], precise: set[int]) -> None:
        self.precise = precise
        super().__init__(trained, {})

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.grad is not None and not self.state[parameter]:
                for name in ("state1", "state2"):
                    self.state[parameter] |= self._moment(parameter, name)

    def _moment(self, parameter: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
        size = parameter.numel()
        if size < _MIN_QUANTIZED_ELEMENTS or id(parameter) in self.precise:
            return {name: torch.zeros(parameter.shape, dtype=torch.float32)}
        scales = torch.zeros(-(-size // _MOMENT_BLOCK))
        return {name: torch.zeros(parameter.shape, dtype=torch.uint8), f"{name}_absmax": scales}
