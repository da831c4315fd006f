"""Arguments of a recipe as LLaMA-Factory's dataclasses take them: nothing is converted, and a key that is left out has
its default. Also the intended value of a refused one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.knowledge import tables


class Arguments:
    """A recipe's keys as LLaMA-Factory takes them. `values` is the recipe as written; a value that was refused already
    is replaced by the intended one, or left out. `defaults` replace LLaMA-Factory's own if a release differs."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.values = values
        self.defaults = defaults or {}

    def updated(self, changes: Mapping[str, Any]) -> Arguments:
        """Return the arguments with other values."""
        return Arguments({**self.values, **changes}, self.defaults)

    def get(self, key: str) -> Any:
        """Return the value LLaMA-Factory sees: as written, else its default."""
        if key in self.values:
            return self.values[key]
        return self.defaults[key] if key in self.defaults else default_value(key)

    def is_set(self, key: str) -> bool:
        """True if the recipe sets the key to something other than null."""
        return self.values.get(key) is not None

    def flag(self, key: str) -> bool:
        """Return the truth of a value as Python sees it, which is all LLaMA-Factory asks: a quoted "false" is true."""
        return bool(self.get(key))

    def number(self, key: str) -> float:
        """Return the value as a number, true as 1; 0 if it is none, not finite, or beyond any use."""
        value = self.get(key)
        return float(value) if isinstance(value, bool) else finite_number(value) or 0.0

    def words(self, key: str) -> tuple[str, ...]:
        """Return a comma-separated text or a list as LLaMA-Factory splits it."""
        value = self.get(key)
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(","))
        return tuple(str(word) for word in value) if isinstance(value, list) else ()


def finite_number(value: Any) -> float | None:
    """Return a number as a float if it is finite and below 1e18; None for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e18:
        return None
    return float(value)


def default_value(key: str) -> Any:
    """Return LLaMA-Factory's default of a key; None for a key that LLaMA-Factory does not know."""
    return tables.json_table("arguments")["arguments"].get(key, {}).get("default")


def intended_value(key: str, value: Any) -> Any:
    """Return the value that a refused one plainly means: 2 for "2" and 2.0, false for "false", sft for SFT, x for [x];
    None if no value is plainly meant. With the intended value one mistake is reported once: otherwise other settings
    would be judged by the default."""
    entry = tables.json_table("arguments")["arguments"].get(key, {})
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
        if isinstance(value, str) and entry.get("type") == "str" and not entry.get("choices"):
            return value
    kinds, text = str(entry.get("type")).split("|"), str(value).strip().lower()
    if entry.get("choices"):
        text = "no" if value is False else text
        return text if text in entry["choices"] else None
    if "bool" in kinds:
        return {"true": True, "false": False}.get(text)
    try:
        number = finite_number(float(text))
    except ValueError:
        return None
    whole = number is not None and number.is_integer()
    return int(number or 0) if "int" in kinds and whole else number if "float" in kinds else None
