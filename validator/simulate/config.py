"""transformers' configuration of a config.json, also of a shallower model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Keys of config.json that say nothing about shapes, or name code that is not transformers'.
_DROPPED = ("architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map",
            "quantization_config")  # fmt: skip
_DEPTH = "num_hidden_layers"


def build(values: Mapping[str, Any], depth: int = 0) -> Any:
    """The configuration, of `depth` layers where that is given: lists that hold one entry for each layer are cut.

    Raises LookupError for a type that transformers has no causal language model of."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = str(values.get("model_type"))
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


def _cut(value: Any, whole: Any, depth: int) -> Any:
    return value[:depth] if isinstance(value, list) and len(value) == whole else value
