"""Configuration and model as LLaMA-Factory's load_model makes them for a bf16 checkpoint, without reading the
weights; also a shallower copy of a model, and Liger's kernels without a device."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from validator.simulation import cuda_behaviour, losses
from validator.simulation.bnb_modules import quantize_linears
from validator.simulation.simulation_request import ADAPTER_METHODS, SimulationRequest

# Keys of config.json that say nothing about shapes, or name code that is not transformers'.
_IGNORED_KEYS = ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map",
            "quantization_config")  # fmt: skip
_LAYERS_KEY = "num_hidden_layers"
_SHARED_LAYERS_KEY = "num_kv_shared_layers"


def build_config(values: Mapping[str, Any], depth: int = 0) -> Any:
    """Return the configuration, with `depth` layers if given: lists with one entry a layer are cut to it.

    Raises LookupError for a type that transformers has no causal language model of."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, thinker = str(values.get("model_type")), values.get("thinker_config")
    if isinstance(thinker, Mapping):  # all that LLaMA-Factory trains of an omni model (model/loader.py)
        return build_config({**thinker, "model_type": f"{kind}_thinker"}, depth)
    if isinstance(values.get("vision_config"), Mapping) and isinstance(values.get("text_config"), Mapping):
        return _vision_config(kind, values, depth)
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in AutoModelForCausalLM._model_mapping:
        raise LookupError(f"transformers has no causal language model of the type `{kind}`")
    mine = {name: value for name, value in values.items() if name not in (*_IGNORED_KEYS, "model_type")}
    if depth:
        name = CONFIG_MAPPING[kind].attribute_map.get(_LAYERS_KEY, _LAYERS_KEY)
        whole = mine.get(name)
        mine = {key: _cut_to_depth(value, whole, depth) for key, value in mine.items()} | {name: depth}
    config = AutoConfig.for_model(kind, **mine)
    config.use_cache = False
    return config


def _vision_config(kind: str, values: Mapping[str, Any], depth: int) -> Any:
    """Return the configuration of a vision model, of which only the decoder is made shallower."""
    from transformers import AutoConfig

    text = {name: value for name, value in values["text_config"].items() if name not in _IGNORED_KEYS}
    text["use_sliding_window"] = False
    if depth:
        whole = int(text[_LAYERS_KEY])
        text = {name: _cut_to_depth(value, whole, depth) for name, value in text.items()} | {_LAYERS_KEY: depth}
        if shared := text.get(_SHARED_LAYERS_KEY):  # of the last layers
            text[_SHARED_LAYERS_KEY] = max(shared - (whole - depth), 0)
    mine = {name: value for name, value in values.items() if name not in (*_IGNORED_KEYS, "model_type")}
    config = AutoConfig.for_model(kind, **{**mine, "text_config": text})
    config.text_config.use_cache = False
    _set_mrope_section(config.text_config)
    return config


def _set_mrope_section(text: Any) -> None:
    """Set how rotary embeddings divide into time, height and width, if the type has that and config.json does not."""
    shares = "mrope_section" in getattr(text, "ignore_keys_at_rope_validation", ())
    if shares and "mrope_section" not in text.rope_parameters:
        half = (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads) // 2
        text.rope_parameters["mrope_section"] = [3 * (half // 8), 3 * (half // 8), half - 6 * (half // 8)]


def _cut_to_depth(value: Any, whole: Any, depth: int) -> Any:
    return value[:depth] if isinstance(value, list) and len(value) == whole else value


def auto_class(config: Any) -> Any:
    """Return the auto class by which LLaMA-Factory loads a model of this configuration (model/loader.py)."""
    import transformers

    seeing = hasattr(config, "vision_config")
    return transformers.AutoModelForImageTextToText if seeing else transformers.AutoModelForCausalLM


def model_without_weights(config: Any, half: torch.dtype, **more: Any) -> Any:
    """Return the model of a configuration, with weights of this dtype."""
    named = "dtype" if hasattr(config, "dtype") else "torch_dtype"  # as older releases call it
    return auto_class(config).from_config(config, **{named: half}, **more)


def fix_temporal_slicing(model: Any) -> Any:
    """Return the model. Ernie 4.5 VL pairs video frames by the values of its grid, which fake tensors lack; for an
    image it uses the one frame twice, so its method is replaced with that (models/ernie4_5_vl_moe/
    modeling_ernie4_5_vl_moe.py, _temporal_slicing)."""
    for module in model.modules():
        if hasattr(module, "_temporal_slicing"):
            module._temporal_slicing = _repeat_frame
    return model


def _repeat_frame(hidden: torch.Tensor, _grid: torch.Tensor) -> torch.Tensor:
    places = torch.empty(hidden.shape[:1], dtype=torch.int64)
    return torch.concat([hidden.index_select(0, places), hidden.index_select(0, places)], dim=-1)


@functools.cache
def _patch_liger_kernels() -> None:
    """Make Liger's kernels compute nothing. Their callers allocate what a run allocates, on CUDA's path."""
    from liger_kernel.ops import fused_linear_cross_entropy as fused
    from triton.runtime.jit import KernelInterface

    KernelInterface.__getitem__ = lambda _kernel, _grid: lambda *_, **__: None
    fused._can_use_mm_out = lambda *_: True
    source = inspect.getsource(fused.fused_linear_cross_entropy_forward).replace("out_dtype=torch.float32,", "")
    for asked in ('grad_weight.device.type == "cuda"', "torch.cuda.get_device_capability(grad_weight.device)[0] >= 8"):
        source = source.replace(asked, "True")
    exec(source, vars(fused))


def apply_liger(config: Any, stage: str) -> None:
    """Apply LLaMA-Factory's enable_liger_kernel for the rest of the process."""
    from llamafactory.hparams import ModelArguments
    from llamafactory.model.model_utils.liger_kernel import apply_liger_kernel

    _patch_liger_kernels()
    arguments = ModelArguments(model_name_or_path="none", enable_liger_kernel=True)
    apply_liger_kernel(config, arguments, is_trainable=True, require_logits=stage != "sft")


_UNMIXED_DTYPES = {"engine": torch.bfloat16, "fp32": torch.float32}
_BASE_DTYPES = {2: torch.bfloat16, 4: torch.float32}
_QUANTIZATION_BITS = {"qlora4": 4, "qlora8": 8}
_LORA_TARGETS = {"qv": "q_proj,v_proj"}


class LoadedModel(NamedTuple):
    """The model, its configuration, its reference where the stage asks one, tensors of both that are no parameters or
    buffers."""

    model: Any
    config: Any
    reference: Any
    extra: list[torch.Tensor]
    vocab: int


def load_model(request: SimulationRequest, real: bool = False) -> LoadedModel:
    """Load the model with its adapters, in training mode. `real` computes quantized weights."""
    made = build_config(request.model, request.depth)
    made._attn_implementation = cuda_behaviour.install_attention(request.attn, request.padded)
    if request.liger:
        apply_liger(made, request.stage)
    with contextlib.nullcontext() if real else mock.patch.object(nn.Module, "_apply", _apply_to_data):
        model, extra = _model_with_adapter(request, made, real)
        if request.precision_mode in _UNMIXED_DTYPES:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(_UNMIXED_DTYPES[request.precision_mode])
        if request.stage == "rm":
            model = losses.add_value_head(model)
        model.train()
    return LoadedModel(model, made, _reference_model(request, made), extra, made.get_text_config().vocab_size)


def _base_model(made: Any, request: SimulationRequest) -> Any:
    """Return the model. A class without the wanted attention keeps its default, as under `flash_attn: auto`."""
    half = _BASE_DTYPES[request.base_bytes]
    try:
        return fix_temporal_slicing(model_without_weights(made, half, attn_implementation=made._attn_implementation))
    except (ValueError, ImportError):
        if request.attn != "sdpa":
            raise
    made._attn_implementation = "eager"
    return model_without_weights(made, half, attn_implementation="eager")


def _model_with_adapter(request: SimulationRequest, made: Any, real: bool) -> tuple[Any, list[torch.Tensor]]:
    """Return the model in load_model's order: quantization, preparation for training, adapter."""
    from llamafactory.hparams import ModelArguments
    from llamafactory.model.adapter import init_adapter
    from llamafactory.model.model_utils.checkpointing import prepare_model_for_training

    model, extra = _base_model(made, request), []
    arguments = ModelArguments(model_name_or_path="none", disable_gradient_checkpointing=not request.grad_ckpt,
                               upcast_layernorm=request.upcast_layernorm)  # fmt: skip
    arguments.compute_dtype = torch.bfloat16
    arguments.quantization_bit = _QUANTIZATION_BITS.get(request.method)
    if arguments.quantization_bit:
        double, kind = arguments.double_quantization, arguments.quantization_type
        extra = quantize_linears(model, arguments.quantization_bit, double, kind, real)
    prepare_model_for_training(model, arguments)
    return init_adapter(made, model, arguments, _finetuning_arguments(request), True), extra


def _finetuning_arguments(request: SimulationRequest) -> Any:
    from llamafactory.hparams import FinetuningArguments

    return FinetuningArguments(
        finetuning_type="lora" if request.method in ("qlora4", "qlora8", "dora") else request.method,
        use_dora=request.method == "dora" or request.dora,
        lora_rank=request.lora_rank or 8,
        lora_target=_LORA_TARGETS.get(request.lora_targets, request.lora_targets or "all"),
        lora_dropout=request.lora_dropout,
        freeze_trainable_layers=request.freeze_layers,
        additional_target=request.additional_target or None,
        pure_bf16=request.precision_mode == "pure_bf16",
        freeze_vision_tower=request.freeze_vision_tower,
        freeze_multi_modal_projector=request.freeze_multi_modal_projector,
        freeze_language_model=request.freeze_language_model,
    )


def _reference_model(request: SimulationRequest, made: Any) -> Any:
    """Return the model of LLaMA-Factory's create_ref_model. With adapters the base model is the reference."""
    if not losses.needs_reference(request.stage) or request.method in ADAPTER_METHODS:
        return None
    return _base_model(made, request).requires_grad_(False).eval()


def _apply_to_data(
    self: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> nn.Module:
    """nn.Module._apply by setting the data of parameters, as fake parameters cannot be swapped."""
    for module in self.modules() if recurse else [self]:
        for parameter in filter(None.__ne__, module._parameters.values()):
            with torch.no_grad():
                parameter.data = function(parameter.data)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else function(buffer)
    return self
