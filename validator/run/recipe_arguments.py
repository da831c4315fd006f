"""What a recipe says: its keys as LLaMA-Factory's dataclasses take them, with their defaults; what its header block
declares of data, machine and price; and the value that a refused value plainly stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import tables
from validator.physics import Band
from validator.recipe.safe_read import parse_json


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

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """Return a mapping, also one that is written as JSON text; empty for null, None for anything else."""
        value = self.get(key)
        if isinstance(value, str):
            try:
                value = parse_json(value)
            except RecipeError:
                return None
        return {} if value is None else value if isinstance(value, Mapping) else None


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
    is_whole = number is not None and number.is_integer()
    return int(number or 0) if "int" in kinds and is_whole else number if "float" in kinds else None


class HeaderLengths(NamedTuple):
    """Tokens of a typical sample and of the longest sample; None if not declared."""

    typical: int | None = None
    longest: int | None = None


class Declared(NamedTuple):
    """Fields of the header block. `samples`: the recommended number; `rows`: those of the named data after
    `max_samples`; None if not declared. `overfit`: the run is meant to learn its samples by heart. `packages`: those
    that the run has beside LLaMA-Factory's own."""

    samples: int | None
    rows: int | None
    lengths: HeaderLengths
    overfit: bool
    packages: frozenset[str]


def header_lengths(value: Any) -> HeaderLengths | None:
    """Return what the header's `lengths` says: the typical length, or a list of it and the longest; None if it is
    neither."""
    lengths = value if isinstance(value, list) else [value]
    numbers = [int(number) for each in lengths if (number := finite_number(each)) and number >= 1]
    if len(numbers) != len(lengths) or not 1 <= len(lengths) <= 2 or numbers != sorted(numbers):
        return None
    return HeaderLengths(*numbers)


def read_declared(header: Mapping[str, Any]) -> Declared:
    """Return the fields of a header block; a value that means nothing counts as not declared."""
    samples, rows = finite_number(header.get("samples")), finite_number(header.get("rows"))
    packages = header.get("packages")
    names = packages if isinstance(packages, list) else str(packages or "").split(",")
    return Declared(
        samples=int(samples) if samples and samples > 0 else None,
        rows=int(rows) if rows and rows > 0 else None,
        lengths=(header_lengths(header["lengths"]) if "lengths" in header else None) or HeaderLengths(),
        overfit=header.get("overfit") is True,
        packages=frozenset(str(name).strip() for name in names) - {""},
    )


_PRICE_FORM = re.compile(r"(\d+(?:\.\d+)?) ?([^\W\d_]{0,12}|[$€¥£])")


class Price(NamedTuple):
    """Money for one device and hour. `currency` is as written and may be empty."""

    amount: float
    currency: str = ""

    def of(self, devices: int, hours: Band) -> Cost:
        """Return the cost of a number of devices for a number of hours."""
        return Cost(*hours.times(devices * self.amount), self.currency)


class Cost(NamedTuple):
    """Money for a whole run: the expected amount and its 90 % band."""

    low: float
    expected: float
    high: float
    currency: str


def parse_price(value: Any) -> Price | None:
    """Return the price that a text or a number states; None if it states none."""
    if number := finite_number(value):
        return Price(number) if number > 0 else None
    match = _PRICE_FORM.fullmatch(value.strip()) if isinstance(value, str) else None
    return Price(float(match[1]), match[2]) if match and float(match[1]) > 0 else None
