"""The contents of a recipe: its keys with LLaMA-Factory's default values; what its header block declares about data,
machine and price; and the value that the user most likely meant where LLaMA-Factory refuses the written one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.errors import RecipeError
from validator.knowledge import tables
from validator.physics import Band
from validator.recipe.safe_read import parse_json
from validator.recipe.suggestions import nearest_name


class Arguments:
    """A recipe's keys with LLaMA-Factory's defaults. `values`: the keys that the recipe sets. A value that
    LLaMA-Factory refuses is replaced by the intended value, or left out. `defaults`: default values of the releases
    that the recipe names, where they differ from the package's tables."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.values = values
        self.defaults = defaults or {}

    def updated(self, changes: Mapping[str, Any]) -> Arguments:
        """Return a copy of the arguments in which `changes` replace or add values."""
        return Arguments({**self.values, **changes}, self.defaults)

    def get(self, key: str) -> Any:
        """Return the value that LLaMA-Factory sees: the written value, or else the default."""
        if key in self.values:
            return self.values[key]
        return self.defaults[key] if key in self.defaults else default_value(key)

    def is_set(self, key: str) -> bool:
        """True if the recipe sets the key to something other than null."""
        return self.values.get(key) is not None

    def flag(self, key: str) -> bool:
        """Return the value as Python's `bool` converts it, because LLaMA-Factory tests only this: a quoted "false" is
        true."""
        return bool(self.get(key))

    def number(self, key: str) -> float:
        """Return the value as a number; true counts as 1. 0 if the value is not a number, not finite, or 1e18 or
        more."""
        value = self.get(key)
        return float(value) if isinstance(value, bool) else finite_number(value) or 0.0

    def words(self, key: str) -> tuple[str, ...]:
        """Return the words of a key whose value is a comma-separated string or a list, as LLaMA-Factory splits them;
        empty for any other value."""
        value = self.get(key)
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(","))
        return tuple(str(word) for word in value) if isinstance(value, list) else ()

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        """Return the value as a mapping if it is a mapping or a JSON text of one. An empty mapping for null, None for
        anything else."""
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


def is_unusable_number(value: Any) -> bool:
    """True for a number that is NaN, infinite, or larger than any run can mean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and finite_number(value) is None


def default_value(key: str) -> Any:
    """Return LLaMA-Factory's default value of a key; None for a key that LLaMA-Factory does not know."""
    return tables.json_table("arguments")["arguments"].get(key, {}).get("default")


def without_unit(text: str) -> str:
    """Return a text such as `4bit` or `8-bit` without the unit, and any other text unchanged."""
    return re.sub(r"(?i)(?<=\d)[ -]?bits?$", "", text)


def intended_value(key: str, value: Any) -> Any:
    """Return the value that the user plainly meant by one that LLaMA-Factory refuses: 2 for "2" and 2.0, 4 for 4bit,
    false for "false", sft for SFT and stf, x for [x]. None if the meaning is not plain. The refused value is reported
    by another rule; the intended value keeps the rules after it from judging by the default and reporting the same
    mistake again."""
    entry = tables.json_table("arguments")["arguments"].get(key)
    if entry is None:  # find_other_engine asks for those of Megatron
        return value if "engine" in tables.yaml_table("strangers").get(key, {}) else None
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
        if isinstance(value, str) and entry.get("type") == "str" and not entry.get("choices"):
            return value
    kinds, text = str(entry.get("type")).split("|"), without_unit(str(value).strip().lower())
    if entry.get("choices"):
        text = "no" if value is False else text
        return nearest_name(text, entry["choices"])
    if "bool" in kinds:
        return {"true": True, "false": False}.get(text)
    try:
        number = finite_number(float(text))
    except ValueError:
        return None
    is_whole = number is not None and number.is_integer()
    return int(number or 0) if "int" in kinds and is_whole else number if "float" in kinds else None


def converted_value(value: Any, entry: Mapping[str, Any]) -> bool | float | str | None:
    """Return a value of the wrong type, converted to the expected type, such as 3 for "3"; None if it could mean
    several values. `entry`: type and choices of the key."""
    kinds = entry["type"].split("|")
    if value is False and "no" in (entry["choices"] or ()):
        return "no"
    if kinds == ["bool"]:
        return {"true": True, "false": False, "1": True, "0": False, "none": False}.get(str(value).strip().lower())
    written = without_unit(value) if isinstance(value, str) else value
    number = read_number(written) if isinstance(written, (str, float)) else None
    if number is None or not abs(number) < 1e18:
        return None
    if "int" in kinds and number.is_integer() and "e" not in str(value).lower():
        return int(number)
    return number if "float" in kinds else None


def read_number(value: str | float) -> float | None:
    """Return the number that a text is; None if it is none."""
    try:
        return float(value)
    except ValueError:
        return None


_MAX_POSSIBLE_CHOICES = 8


def possible_values(key: str) -> tuple[str | float | bool, ...]:
    """Return some values that a key may have: some of its choices, or small and large ones of its type."""
    entry = tables.json_table("arguments")["arguments"].get(key, {})
    choices, kinds = entry.get("choices") or (), str(entry.get("type")).split("|")
    if choices:
        return tuple(choices[:: -(-len(choices) // _MAX_POSSIBLE_CHOICES)])
    if "bool" in kinds:
        return (True, False)
    return (1, 32, 4096) if "int" in kinds else (1e-6, 0.1, 1.0, 100.0) if "float" in kinds else ("x",)


class HeaderLengths(NamedTuple):
    """Lengths in tokens of a typical sample and of the longest sample; None if the header block does not declare
    them."""

    typical: int | None = None
    longest: int | None = None


class Declared(NamedTuple):
    """Fields that a recipe's header block declares. `samples`: the recommended number of samples. `rows`: rows of the
    data sets that the recipe names, after `max_samples`. Each is None if not declared. `overfit`: the run is meant to
    memorize its samples. `packages`: installed packages in addition to LLaMA-Factory's own requirements, by name, with
    the release behind `==` or an empty string."""

    samples: int | None
    rows: int | None
    lengths: HeaderLengths
    overfit: bool
    packages: Mapping[str, str]


def header_lengths(value: Any) -> HeaderLengths | None:
    """Return what `lengths` in the header block says: one number, the typical length, or a list of the typical and the
    longest length. None if the value is neither."""
    lengths = value if isinstance(value, list) else [value]
    numbers = [int(number) for each in lengths if (number := finite_number(each)) and number >= 1]
    if len(numbers) != len(lengths) or not 1 <= len(lengths) <= 2 or numbers != sorted(numbers):
        return None
    return HeaderLengths(*numbers)


# A requirement of pip: the name of the package, and its release if it must be exactly that one.
_PACKAGE_FORM = re.compile(r"\s*([\w.-]+)(?:\s*==\s*([\w.+!-]+))?")


def read_declared(header: Mapping[str, Any]) -> Declared:
    """Return what a header block declares. A field with an invalid value counts as not declared."""
    samples, rows = finite_number(header.get("samples")), finite_number(header.get("rows"))
    packages = header.get("packages")
    names = packages if isinstance(packages, list) else str(packages or "").split(",")
    return Declared(
        samples=int(samples) if samples and samples > 0 else None,
        rows=int(rows) if rows and rows > 0 else None,
        lengths=(header_lengths(header["lengths"]) if "lengths" in header else None) or HeaderLengths(),
        overfit=header.get("overfit") is True,
        packages={match[1]: match[2] or "" for name in names if (match := _PACKAGE_FORM.match(str(name)))},
    )


_PRICE_FORM = re.compile(r"(\d+(?:\.\d+)?) ?([^\W\d_]{0,12}|[$€¥£])")


class Price(NamedTuple):
    """Price of one device per hour. `currency`: as the user wrote it; may be empty."""

    amount: float
    currency: str = ""

    def of(self, devices: int, hours: Band) -> Cost:
        """Return the cost of a number of devices for a number of hours, with the band of the hours."""
        return Cost(*hours.times(devices * self.amount), self.currency)


class Cost(NamedTuple):
    """Cost of a whole run: the expected amount and its band."""

    low: float
    expected: float
    high: float
    currency: str


def parse_price(value: Any) -> Price | None:
    """Return the price in a text such as "2.5 USD" or a number; None if the value is not a price above 0."""
    if number := finite_number(value):
        return Price(number) if number > 0 else None
    match = _PRICE_FORM.fullmatch(value.strip()) if isinstance(value, str) else None
    amount = finite_number(float(match[1])) if match else None
    return Price(amount, match[2]) if match and amount else None
