"""What config.json says of each layer, where their shapes differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from validator.diagnostic import RecipeError
from validator.tables.sizes import checked

Config = Mapping[str, Any]
# What no config.json says: one matrix makes keys and values; they are an earlier layer's, or made of what towers give.
JOINT, BORROWED, CROSSED = "joint_keys_and_values", "borrowed_keys_and_values", "crossed_keys_and_values"


def by_layer(config: Config, differs: str) -> Iterator[Config]:
    """The config.json of a decoder whose layers all are as this one, first layers first. `differs`: in what, as
    data/families.yaml says.

    Raises KeyError, RecipeError."""
    layers = checked("num_hidden_layers", config["num_hidden_layers"])
    return _crossing(config, layers) if differs == "crossed" else _by_heads(config, layers)


def _crossing(config: Config, layers: int) -> Iterator[Config]:
    """Layers that read what towers give; they alone have norms of heads. Without a list each fifth, as in the class."""
    chosen = config.get("cross_attention_layers") or range(3, layers, 5)
    if not isinstance(chosen, list | range):
        raise RecipeError(f"config.json: `cross_attention_layers` is {chosen!r}, not a list")
    for number in range(layers):
        yield {**config, CROSSED: number in chosen, "use_qk_norm": number in chosen}


def _by_heads(config: Config, layers: int) -> Iterator[Config]:
    """Layers that attend to all tokens: without a list each sixth, and always the last."""
    kinds = config.get("layer_types") or [*(number % 6 == 5 for number in range(layers - 1)), True]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise RecipeError(f"config.json: `layer_types` does not name each of {layers} layers")
    borrowing = config.get("num_kv_shared_layers")
    own = layers - (checked("num_kv_shared_layers", borrowing) if borrowing else 0)
    for number, kind in enumerate(kinds):
        layer = {**config, **_borrowing(config)} if number >= own > 0 else config
        yield {**layer, **_whole(config)} if kind in ("full_attention", True) else layer


def _borrowing(config: Config) -> Config:
    twice = 2 if config.get("use_double_wide_mlp") else 1
    return {BORROWED: True, "intermediate_size": twice * checked("intermediate_size", config["intermediate_size"])}


def _whole(config: Config) -> Config:
    """Of a layer that attends to all tokens."""
    joint = bool(config.get("attention_k_eq_v"))
    shared = {"num_key_value_heads": config.get("num_global_key_value_heads"), JOINT: True} if joint else {}
    return {"head_dim": config.get("global_head_dim") or config.get("head_dim"), "sliding_window": 0, **shared}
