"""Builds configuration and model as LLaMA-Factory's load_model does for a bf16 checkpoint, without reading weights.
Also builds copies of a model with fewer layers, and makes Liger's kernels work without a device."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple
from unittest import mock

import torch
from llamafactory.hparams import FinetuningArguments, ModelArguments
from llamafactory.model.adapter import init_adapter
from llamafactory.model.model_utils.checkpointing import prepare_model_for_training
from llamafactory.model.model_utils.liger_kernel import apply_liger_kernel
from llamafactory.model.patcher import patch_valuehead_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from trl import AutoModelForCausalLMWithValueHead

from validator.simulation import fake_tensors
from validator.simulation.simulation_request import ADAPTER_METHODS, REFERENCE_STAGES, SimulationRequest

try:
    from transformers import masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ImportError:  # older releases build masks in each class
    masking_utils = None
if find_spec("liger_kernel") and find_spec("triton"):
    from liger_kernel.ops import fused_linear_cross_entropy
    from triton.runtime.jit import KernelInterface

# Keys of config.json that say nothing about shapes, or name code that is not transformers'.
_IGNORED_KEYS = ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map",
                 "quantization_config")  # fmt: skip
_LAYERS_KEY = "num_hidden_layers"
_SHARED_LAYERS_KEY = "num_kv_shared_layers"


def build_config(values: Mapping[str, Any], depth: int = 0) -> Any:
    """Return the transformers configuration for the values of a config.json. With `depth`, the configuration has that
    many layers, and lists with one entry for each layer are cut.

    Raises LookupError if transformers has no causal language model of this type."""
    kind, thinker = str(values.get("model_type")), values.get("thinker_config")
    if isinstance(thinker, Mapping):  # all that LLaMA-Factory trains of an omni model (model/loader.py)
        return build_config({**thinker, "model_type": f"{kind}_thinker"}, depth)
    fields = {name: value for name, value in values.items() if name not in (*_IGNORED_KEYS, "model_type")}
    if isinstance(values.get("vision_config"), Mapping) and isinstance(values.get("text_config"), Mapping):
        return _vision_config(kind, fields, depth)
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in AutoModelForCausalLM._model_mapping:
        raise LookupError(f"transformers has no causal language model of the type `{kind}`")
    if depth:
        fields = _cut_to_depth(fields, CONFIG_MAPPING[kind].attribute_map.get(_LAYERS_KEY, _LAYERS_KEY), depth)
    config = AutoConfig.for_model(kind, **fields)
    config.use_cache = False
    return config


def _vision_config(kind: str, values: Mapping[str, Any], depth: int) -> Any:
    """Return the configuration of a vision-language model. `kind` is its `model_type`, and `values` are those of
    config.json. `depth` reduces only the layers of the decoder (0: all layers)."""
    text = {name: value for name, value in values["text_config"].items() if name not in _IGNORED_KEYS}
    text["use_sliding_window"] = False
    if depth:
        dropped = int(text[_LAYERS_KEY]) - depth
        text = _cut_to_depth(text, _LAYERS_KEY, depth)
        if shared := text.get(_SHARED_LAYERS_KEY):  # the last layers share their keys and values
            text[_SHARED_LAYERS_KEY] = max(shared - dropped, 0)
    config = AutoConfig.for_model(kind, **{**values, "text_config": text})
    decoder = config.text_config
    decoder.use_cache = False
    # config.json may lack how rotary embeddings divide into time, height and width.
    divides = "mrope_section" in getattr(decoder, "ignore_keys_at_rope_validation", ())
    if divides and "mrope_section" not in decoder.rope_parameters:
        half = (getattr(decoder, "head_dim", None) or decoder.hidden_size // decoder.num_attention_heads) // 2
        decoder.rope_parameters["mrope_section"] = [3 * (half // 8), 3 * (half // 8), half - 6 * (half // 8)]
    return config


def _cut_to_depth(values: Mapping[str, Any], layers_key: str, depth: int) -> dict[str, Any]:
    """Return the configuration values for a model of `depth` layers. `layers_key` is the key that holds the number of
    layers."""
    layers = values.get(layers_key)
    cut = {name: value[:depth] if isinstance(value, list) and len(value) == layers else value
           for name, value in values.items()}  # fmt: skip
    return {**cut, layers_key: depth}


def model_without_weights(config: Any, half: torch.dtype, **options: Any) -> Any:
    """Create the model of a configuration with parameters of the dtype `half`, without reading a checkpoint. The auto
    class is the one that LLaMA-Factory uses (model/loader.py). Further arguments are passed to the class."""
    auto_class = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    dtype_name = "dtype" if hasattr(config, "dtype") else "torch_dtype"  # as older releases call it
    return auto_class.from_config(config, **{dtype_name: half}, **options)


_UNMIXED_DTYPES = {"engine": torch.bfloat16, "fp32": torch.float32}
_BASE_DTYPES = {2: torch.bfloat16, 4: torch.float32}
_QUANTIZATION_BITS = {"qlora4": 4, "qlora8": 8}
_LORA_TARGETS = {"qv": "q_proj,v_proj"}


class LoadedModel(NamedTuple):
    """A loaded model and its configuration. `reference` is the reference model if the stage needs one, otherwise None.
    `extra` are tensors of the model that are neither parameters nor buffers."""

    model: Any
    config: Any
    reference: Any
    extra: list[torch.Tensor]


def load_model(request: SimulationRequest, real: bool = False) -> LoadedModel:
    """Load the model of a request with its adapters, in training mode. By default its tensors have shapes and types,
    but no values. With `real`, weights have random values, and 4-bit weights are really quantized."""
    config = build_config(request.model, request.depth)
    config._attn_implementation = _install_attention(request.attn, request.padded)
    if request.liger:
        _patch_liger_kernels()
        arguments = ModelArguments(model_name_or_path="none", enable_liger_kernel=True)
        apply_liger_kernel(config, arguments, is_trainable=True, require_logits=request.stage != "sft")
    with contextlib.nullcontext() if real else mock.patch.object(nn.Module, "_apply", _apply_to_data):
        model, extra = _model_with_adapter(request, config, real)
        if request.precision_mode in _UNMIXED_DTYPES:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(_UNMIXED_DTYPES[request.precision_mode])
        if request.stage == "rm":
            model = AutoModelForCausalLMWithValueHead.from_pretrained(model)
            patch_valuehead_model(model)
        model.train()
    reference = None
    # As LLaMA-Factory's create_ref_model: beside adapters the base model is the reference.
    if request.stage in REFERENCE_STAGES and request.method not in ADAPTER_METHODS:
        reference = _base_model(config, request).requires_grad_(False).eval()
    return LoadedModel(model, config, reference, extra)


def _base_model(config: Any, request: SimulationRequest) -> Any:
    """Create the model without adapters. If the class does not support SDPA, its eager attention is used, as
    LLaMA-Factory does under `flash_attn: auto`."""
    half = _BASE_DTYPES[request.base_bytes]
    try:
        model = model_without_weights(config, half, attn_implementation=config._attn_implementation)
    except (ValueError, ImportError):
        if request.attn != "sdpa":
            raise
        config._attn_implementation = "eager"
        model = model_without_weights(config, half, attn_implementation="eager")
    for module in model.modules():
        if hasattr(module, "_temporal_slicing"):
            module._temporal_slicing = _repeat_frame
    return model


def _repeat_frame(hidden: torch.Tensor, _grid: torch.Tensor) -> torch.Tensor:
    """Pair the single frame of an image with itself. Ernie 4.5 VL pairs video frames by the values of its grid, which
    fake tensors do not have (models/ernie4_5_vl_moe/modeling_ernie4_5_vl_moe.py, _temporal_slicing)."""
    places = torch.empty(hidden.shape[:1], dtype=torch.int64)
    return torch.concat([hidden.index_select(0, places), hidden.index_select(0, places)], dim=-1)


def _model_with_adapter(request: SimulationRequest, config: Any, real: bool) -> tuple[Any, list[torch.Tensor]]:
    """Return the model after the steps of LLaMA-Factory's load_model, in their order: quantization, preparation for
    training, adapter. Also return the tensors of quantized weights that are no parameters."""
    model, extra = _base_model(config, request), []
    arguments = ModelArguments(model_name_or_path="none", disable_gradient_checkpointing=not request.grad_ckpt,
                               upcast_layernorm=request.upcast_layernorm)  # fmt: skip
    arguments.compute_dtype = torch.bfloat16
    arguments.quantization_bit = _QUANTIZATION_BITS.get(request.method)
    if arguments.quantization_bit:
        from validator.simulation.bnb_modules import quantize_linears  # bitsandbytes may not be installed

        double, kind = arguments.double_quantization, arguments.quantization_type
        extra = quantize_linears(model, arguments.quantization_bit, double, kind, real)
    prepare_model_for_training(model, arguments)
    finetuning = FinetuningArguments(
        finetuning_type="lora" if request.method in ("qlora4", "qlora8", "dora") else request.method,
        use_dora=request.method == "dora" or request.dora,
        lora_rank=request.lora_rank,
        lora_target=_LORA_TARGETS.get(request.lora_targets, request.lora_targets),
        lora_dropout=request.lora_dropout,
        freeze_trainable_layers=request.freeze_layers,
        additional_target=request.additional_target or None,
        pure_bf16=request.precision_mode == "pure_bf16",
        freeze_vision_tower=request.freeze_vision_tower,
        freeze_multi_modal_projector=request.freeze_multi_modal_projector,
        freeze_language_model=request.freeze_language_model,
    )
    return init_adapter(config, model, arguments, finetuning, True), extra


def _apply_to_data(
    self: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> nn.Module:
    """Replace nn.Module._apply: set the data of parameters instead of replacing the parameters, because fake parameters
    cannot be replaced."""
    for module in self.modules() if recurse else [self]:
        for parameter in filter(None.__ne__, module._parameters.values()):
            with torch.no_grad():
                parameter.data = function(parameter.data)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else function(buffer)
    return self


@functools.cache
def _patch_liger_kernels() -> None:
    """Patch Liger's Triton kernels so that they compute nothing. The functions that call the kernels still allocate the
    same tensors as on CUDA."""
    fused = fused_linear_cross_entropy
    KernelInterface.__getitem__ = lambda _kernel, _grid: lambda *_, **__: None
    fused._can_use_mm_out = lambda *_: True
    source = inspect.getsource(fused.fused_linear_cross_entropy_forward).replace("out_dtype=torch.float32,", "")
    for condition in (
        'grad_weight.device.type == "cuda"',
        "torch.cuda.get_device_capability(grad_weight.device)[0] >= 8",
    ):
        source = source.replace(condition, "True")
    exec(source, vars(fused))


# transformers looks for a package where a name holds "flash".
_ATTENTION_IMPLEMENTATIONS = {"sdpa": "sdpa", "eager": "eager", "fa2": "simulated_fa2"}


def _install_attention(attention: str, padded: bool) -> str:
    """Register the simulator's flash attention with transformers, and return transformers' name for the attention
    implementation.

    transformers takes a fake tensor for a sign of tracing, and would build a mask. A real run without padding passes no
    mask and sets `is_causal`. A run with a mask does not search for packed sequences. The patches restore this
    behaviour. Older releases build masks in each model class: there the tracker answers the classes' questions about
    values, and the simulator's flash attention ignores the mask."""
    name = _ATTENTION_IMPLEMENTATIONS[attention]
    if masking_utils is None:
        return name

    def skips_mask(_mask: Any, query_length: int, kv_length: int, _offset: int = 0, window: int | None = None) -> bool:
        """Return whether attention may go without a mask. Replaces transformers' function, which reads the values of
        the mask to find out whether there is padding; a fake mask has no values."""
        return not padded and query_length == kv_length and (window is None or kv_length < window)

    if _ATTENTION_IMPLEMENTATIONS["fa2"] not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION_IMPLEMENTATIONS["fa2"], fake_tensors.flash_attention)
        masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION_IMPLEMENTATIONS["fa2"], lambda *_, **__: None)
    masking_utils.is_tracing = lambda *_, **__: False
    masking_utils._ignore_causal_mask_sdpa = skips_mask
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    return name
