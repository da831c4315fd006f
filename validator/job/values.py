"""The values of a recipe as LLaMA-Factory's dataclasses take them: nothing is converted, what is left out has a
default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from validator.tables import data


# dataclass compiles each method that it writes, at every start: of a job and what it is made of, it writes none unused.
@dataclass(eq=False, repr=False)
class Values:
    """`values` is the recipe as written; of a value that was refused already, what it stands for, or nothing."""

    values: Mapping[str, Any]

    def get(self, key: str) -> Any:
        """The value LLaMA-Factory sees: as written, else its default."""
        return self.values[key] if key in self.values else default(key)

    def has(self, key: str) -> bool:
        """Whether the recipe sets the key to something other than null."""
        return self.values.get(key) is not None

    def flag(self, key: str) -> bool:
        """Truth as Python sees it, which is all LLaMA-Factory asks: a quoted "false" is true."""
        return bool(self.get(key))

    def number(self, key: str) -> float:
        """The value as a number, true as 1; 0 where it is none, not finite, or beyond any use."""
        value = self.get(key)
        return float(value) if isinstance(value, bool) else quantity(value) or 0.0

    def words(self, key: str) -> tuple[str, ...]:
        """A comma-separated text or a list, as LLaMA-Factory splits it."""
        value = self.get(key)
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(","))
        return tuple(str(word) for word in value) if isinstance(value, list) else ()


def quantity(value: Any) -> float | None:
    """A finite number of a size that can mean something; None for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e18:
        return None
    return float(value)


def default(key: str) -> Any:
    """LLaMA-Factory's default of a key; None for a key it does not know."""
    return data.table("arguments")["arguments"].get(key, {}).get("default")
