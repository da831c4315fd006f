"""Reads single fields of a model's config.json, and checks that sizes are positive whole numbers below a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.errors import RecipeError
from validator.wording import clip

Config = Mapping[str, Any]
# No size of a model comes near it; products of greater ones leave what a float can hold. Layers are counted one by one.
_LARGEST_SIZE, _MOST_LAYERS = 10**9, 10**4


# Ends of the names of numbers with which a model computes: those of which it takes a root or a power, and others
_ABOVE_0 = ("eps", "epsilon", "rope_theta")
_COMPUTED = (*_ABOVE_0, "dropout", "initializer_range")
_FP32_OVERFLOW = 3.5e38


def refuse_impossible_numbers(config: Config) -> None:
    """Raise RecipeError, which names the field, if a number of config.json is one with which a model computes NaN."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            refuse_impossible_numbers(value)
        elif isinstance(value, float) and name.endswith(_COMPUTED) and not abs(value) < _FP32_OVERFLOW:
            raise RecipeError(f"config.json: `{name}` is {value}, not a finite number; correct it")
        elif isinstance(value, int | float) and name.endswith(_ABOVE_0) and value <= 0:
            raise RecipeError(f"config.json: `{name}` is {value}, not a number above 0; correct it")


def checked_size(name: str, value: object) -> int:
    """Return `value`, the size in the field `name` of a config.json. Raises RecipeError, which names the field, if the
    value is not a positive whole number, or is greater than any real model's: `_MOST_LAYERS` for numbers of layers,
    `_LARGEST_SIZE` for other sizes."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise RecipeError(f"config.json: `{name}` is {clip(repr(value))}, not a positive whole number")
    largest = _MOST_LAYERS if name.endswith(("layers", "depth")) else _LARGEST_SIZE
    if value > largest:
        raise RecipeError(f"config.json: `{name}` is more than {largest:,}")
    return value


def optional_factor(config: Config, name: str) -> float:
    """Return the number in a field that multiplies a size; 1 if the field is absent, null or 0. Raises RecipeError if
    the field has another value that is not a positive number."""
    value = config.get(name) or 1
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _LARGEST_SIZE:
        raise RecipeError(f"config.json: `{name}` is {clip(repr(value))}, not a positive number")
    return value


def required_size(config: Config, name: str) -> int:
    """Return the size in a field. Raises KeyError if the field is missing, and RecipeError if its value is not a
    positive whole number."""
    return checked_size(name, config[name])


def optional_size(config: Config, name: str) -> int:
    """Return the size in a field; 0 if the field is absent, null or 0. Raises RecipeError for any other value that is
    not a positive whole number."""
    return required_size(config, name) if config.get(name) else 0


def default_head_dim(hidden: int, heads: int) -> int:
    """Return the width of an attention head if config.json does not state it: hidden size / number of heads. Raises
    RecipeError if the number of heads exceeds the hidden size."""
    if heads > hidden:
        raise RecipeError(f"config.json: `num_attention_heads` is {heads:,}, more than the hidden size of {hidden:,}")
    return hidden // heads
