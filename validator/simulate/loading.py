"""LLaMA-Factory's load_model for a bf16 checkpoint, minus reading the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from validator.simulate import attention, liger, stages
from validator.simulate.cell import ADAPTED, Cell
from validator.simulate.quantized import quantize

# Keys of config.json that say nothing about shapes, or name code that is not transformers'.
_DROPPED = ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map")
_UNMIXED = {"engine": torch.bfloat16, "fp32": torch.float32}
_BITS = {"qlora4": 4, "qlora8": 8}
_TARGETS = {"all": "all", "qv": "q_proj,v_proj"}


class Loaded(NamedTuple):
    """The model, its reference where the stage asks one, tensors of both that are no parameters or buffers."""

    model: Any
    reference: Any
    extra: list[torch.Tensor]
    vocab: int


def load(cell: Cell, real: bool = False) -> Loaded:
    """The model with its adapters, in training mode. `real` computes quantized weights."""
    config = _config(cell)
    with contextlib.nullcontext() if real else _data_replaced():
        model, extra = _adapted(cell, config, real)
        if cell.precision_mode in _UNMIXED:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(_UNMIXED[cell.precision_mode])
        if cell.stage == "rm":
            model = stages.with_value_head(model)
        model.train()
    return Loaded(model, _reference(cell, config), extra, config.vocab_size)


def _config(cell: Cell) -> Any:
    """transformers' configuration, with the attention and the experts of a run on CUDA."""
    from transformers import AutoConfig

    values = {name: value for name, value in cell.model.items() if name not in _DROPPED}
    kind = values.pop("model_type")
    config = AutoConfig.for_model(kind, **values)
    config.use_cache = False
    config._attn_implementation = attention.install(cell.attn, cell.padded)
    if cell.liger:
        liger.fuse(config, cell.stage)
    return config


def _built(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    implementation = config._attn_implementation
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=implementation)


def _adapted(cell: Cell, config: Any, real: bool) -> tuple[Any, list[torch.Tensor]]:
    """load_model's order: quantization, preparation for training, adapter."""
    from llamafactory.hparams import ModelArguments
    from llamafactory.model.adapter import init_adapter
    from llamafactory.model.model_utils.checkpointing import prepare_model_for_training

    model, extra = _built(config), []
    arguments = ModelArguments(model_name_or_path="none", disable_gradient_checkpointing=not cell.grad_ckpt)
    arguments.compute_dtype = torch.bfloat16
    arguments.quantization_bit = _BITS.get(cell.method)
    if arguments.quantization_bit:
        double, kind = arguments.double_quantization, arguments.quantization_type
        extra = quantize(model, arguments.quantization_bit, double, kind, real)
    prepare_model_for_training(model, arguments)
    return init_adapter(config, model, arguments, _finetuning(cell), True), extra


def _finetuning(cell: Cell) -> Any:
    from llamafactory.hparams import FinetuningArguments

    return FinetuningArguments(
        finetuning_type="lora" if cell.method in ("qlora4", "qlora8", "dora") else cell.method,
        use_dora=cell.method == "dora",
        lora_rank=cell.lora_rank or 8,
        lora_target=_TARGETS.get(cell.lora_targets, cell.lora_targets or "all"),
        freeze_trainable_layers=cell.freeze_layers,
        additional_target=cell.additional_target or None,
        pure_bf16=cell.precision_mode == "pure_bf16",
    )


def _reference(cell: Cell, config: Any) -> Any:
    """LLaMA-Factory's create_ref_model: none beside adapters, whose base model is the reference."""
    if not stages.compares(cell.stage) or cell.method in ADAPTED:
        return None
    return _built(config).requires_grad_(False).eval()


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
