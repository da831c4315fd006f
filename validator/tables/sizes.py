"""Sizes that a config.json gives."""

from collections.abc import Mapping
from typing import Any

from validator.diagnostic import RecipeError
from validator.read.text import clip

# No size of a model comes near it; products of greater ones leave what a float can hold. Layers are counted one by one.
_LARGEST, _DEEPEST = 10**9, 10**4


def checked(name: str, value: object) -> int:
    """A size by its name in config.json. Raises RecipeError for what is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise RecipeError(f"config.json: `{name}` is {_shown(value)}, not a positive whole number")
    largest = _DEEPEST if name.endswith(("layers", "depth")) else _LARGEST
    if value > largest:
        raise RecipeError(f"config.json: `{name}` is more than {largest:,}")
    return value


def factor(config: Mapping[str, Any], name: str) -> float:
    """A number that a size is multiplied by; 1 where the field is absent, null or 0. Raises RecipeError."""
    value = config.get(name) or 1
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _LARGEST:
        raise RecipeError(f"config.json: `{name}` is {_shown(value)}, not a positive number")
    return value


def _shown(value: object) -> str:
    """A value in a message."""
    return clip(repr(value))


def size(config: Mapping[str, Any], name: str) -> int:
    """A field that must be there. Raises KeyError where it is not."""
    return checked(name, config[name])


def optional(config: Mapping[str, Any], name: str) -> int:
    """0 where the field is absent, null or 0."""
    return size(config, name) if config.get(name) else 0


def head_dim(hidden: int, heads: int) -> int:
    """Width of an attention head where it is not given. Raises RecipeError for more heads than the model is wide."""
    if heads > hidden:
        raise RecipeError(f"config.json: `num_attention_heads` is {heads:,}, more than the hidden size of {hidden:,}")
    return hidden // heads
