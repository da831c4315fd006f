"""transformers' configuration of a config.json, also of a shallower model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Keys of config.json that say nothing about shapes, or name code that is not transformers'.
_DROPPED = ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map",
            "quantization_config")  # fmt: skip
_DEPTH = "num_hidden_layers"
_SHARED = "num_kv_shared_layers"


def build(values: Mapping[str, Any], depth: int = 0) -> Any:
    """The configuration, of `depth` layers where that is given: lists that hold one entry for each layer are cut.

    Raises LookupError for a type that transformers has no causal language model of."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind, thinker = str(values.get("model_type")), values.get("thinker_config")
    if isinstance(thinker, Mapping):  # all that LLaMA-Factory trains of an omni model (model/loader.py)
        return build({**thinker, "model_type": f"{kind}_thinker"}, depth)
    if isinstance(values.get("vision_config"), Mapping) and isinstance(values.get("text_config"), Mapping):
        return _seeing(kind, values, depth)
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in AutoModelForCausalLM._model_mapping:
        raise LookupError(f"transformers has no causal language model of the type `{kind}`")
    mine = {name: value for name, value in values.items() if name not in (*_DROPPED, "model_type")}
    if depth:
        name = CONFIG_MAPPING[kind].attribute_map.get(_DEPTH, _DEPTH)
        whole = mine.get(name)
        mine = {key: _cut(value, whole, depth) for key, value in mine.items()} | {name: depth}
    config = AutoConfig.for_model(kind, **mine)
    config.use_cache = False
    return config


def _seeing(kind: str, values: Mapping[str, Any], depth: int) -> Any:
    """Of a model that sees, whose decoder alone is made shallower."""
    from transformers import AutoConfig

    text = {name: value for name, value in values["text_config"].items() if name not in _DROPPED}
    text["use_sliding_window"] = False
    if depth:
        whole = int(text[_DEPTH])
        text = {name: _cut(value, whole, depth) for name, value in text.items()} | {_DEPTH: depth}
        if shared := text.get(_SHARED):  # of the last layers
            text[_SHARED] = max(shared - (whole - depth), 0)
    mine = {name: value for name, value in values.items() if name not in (*_DROPPED, "model_type")}
    config = AutoConfig.for_model(kind, **{**mine, "text_config": text})
    config.text_config.use_cache = False
    _rotate(config.text_config)
    return config


def _rotate(text: Any) -> None:
    """Rotation by time, height and width, where the type has it and config.json was not asked for its shares."""
    shares = "mrope_section" in getattr(text, "ignore_keys_at_rope_validation", ())
    if shares and "mrope_section" not in text.rope_parameters:
        half = (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads) // 2
        text.rope_parameters["mrope_section"] = [3 * (half // 8), 3 * (half // 8), half - 6 * (half // 8)]


def _cut(value: Any, whole: Any, depth: int) -> Any:
    return value[:depth] if isinstance(value, list) and len(value) == whole else value
