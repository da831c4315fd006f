"""LLaMA-Factory's load_model for a bf16 checkpoint, minus reading the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from validator.simulate import attention, config, liger, pictures, stages
from validator.simulate.cell import ADAPTED, Cell
from validator.simulate.quantized import quantize

_UNMIXED = {"engine": torch.bfloat16, "fp32": torch.float32}
_BASE = {2: torch.bfloat16, 4: torch.float32}
_BITS = {"qlora4": 4, "qlora8": 8}
_TARGETS = {"qv": "q_proj,v_proj"}


class Loaded(NamedTuple):
    """The model, its configuration, its reference where the stage asks one, tensors of both that are no parameters or
    buffers."""

    model: Any
    config: Any
    reference: Any
    extra: list[torch.Tensor]
    vocab: int


def load(cell: Cell, real: bool = False) -> Loaded:
    """The model with its adapters, in training mode. `real` computes quantized weights."""
    made = _config(cell)
    with contextlib.nullcontext() if real else _data_replaced():
        model, extra = _adapted(cell, made, real)
        if cell.precision_mode in _UNMIXED:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(_UNMIXED[cell.precision_mode])
        if cell.stage == "rm":
            model = stages.with_value_head(model)
        model.train()
    return Loaded(model, made, _reference(cell, made), extra, made.get_text_config().vocab_size)


def _config(cell: Cell) -> Any:
    """The configuration, with the attention of a run on CUDA."""
    made = config.build(cell.model, cell.depth)
    made._attn_implementation = attention.install(cell.attn, cell.padded)
    if cell.liger:
        liger.fuse(made, cell.stage)
    return made


def _built(made: Any, cell: Cell) -> Any:
    """The model; where a class knows no such attention, on its own default, as `flash_attn: auto` leaves it."""
    half = _BASE[cell.base_bytes]
    try:
        return pictures.still(pictures.made(made, half, attn_implementation=made._attn_implementation))
    except (ValueError, ImportError):
        if cell.attn != "sdpa":
            raise
    made._attn_implementation = "eager"
    return pictures.made(made, half, attn_implementation="eager")


def _adapted(cell: Cell, made: Any, real: bool) -> tuple[Any, list[torch.Tensor]]:
    """load_model's order: quantization, preparation for training, adapter."""
    from llamafactory.hparams import ModelArguments
    from llamafactory.model.adapter import init_adapter
    from llamafactory.model.model_utils.checkpointing import prepare_model_for_training

    model, extra = _built(made, cell), []
    arguments = ModelArguments(model_name_or_path="none", disable_gradient_checkpointing=not cell.grad_ckpt,
                               upcast_layernorm=cell.upcast_layernorm)  # fmt: skip
    arguments.compute_dtype = torch.bfloat16
    arguments.quantization_bit = _BITS.get(cell.method)
    if arguments.quantization_bit:
        double, kind = arguments.double_quantization, arguments.quantization_type
        extra = quantize(model, arguments.quantization_bit, double, kind, real)
    prepare_model_for_training(model, arguments)
    return init_adapter(made, model, arguments, _finetuning(cell), True), extra


def _finetuning(cell: Cell) -> Any:
    from llamafactory.hparams import FinetuningArguments

    return FinetuningArguments(
        finetuning_type="lora" if cell.method in ("qlora4", "qlora8", "dora") else cell.method,
        use_dora=cell.method == "dora" or cell.dora,
        lora_rank=cell.lora_rank or 8,
        lora_target=_TARGETS.get(cell.lora_targets, cell.lora_targets or "all"),
        lora_dropout=cell.lora_dropout,
        freeze_trainable_layers=cell.freeze_layers,
        additional_target=cell.additional_target or None,
        pure_bf16=cell.precision_mode == "pure_bf16",
        freeze_vision_tower=cell.freeze_vision_tower,
        freeze_multi_modal_projector=cell.freeze_multi_modal_projector,
        freeze_language_model=cell.freeze_language_model,
    )


def _reference(cell: Cell, made: Any) -> Any:
    """LLaMA-Factory's create_ref_model: none beside adapters, whose base model is the reference."""
    if not stages.compares(cell.stage) or cell.method in ADAPTED:
        return None
    return _built(made, cell).requires_grad_(False).eval()


@contextlib.contextmanager
def uninitialized() -> Iterator[None]:
    """Weights without values need no first ones, which some distributions (torch, trunc_normal_) ask back."""
    from transformers import PreTrainedModel

    real = PreTrainedModel._initialize_weights
    PreTrainedModel._initialize_weights = lambda *_, **__: None
    try:
        yield
    finally:
        PreTrainedModel._initialize_weights = real


@contextlib.contextmanager
def _data_replaced() -> Iterator[None]:
    """nn.Module.to cannot swap parameters that are fake; their data can be set."""
    real = nn.Module._apply

    def apply(self: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        for module in self.modules() if recurse else [self]:
            for parameter in filter(None.__ne__, module._parameters.values()):
                with torch.no_grad():
                    parameter.data = function(parameter.data)
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else function(buffer)
        return self

    nn.Module._apply = apply
    try:
        yield
    finally:
        nn.Module._apply = real
