"""The user's own prices of devices: one for all, or one for each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import devices
from validator.recipe.safe_read import path_kind, read_yaml
from validator.run.recipe_arguments import Price, parse_price

_FILE_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class OwnPrices:
    """Prices that the user gives. `text`: the value of --price. `of_all`: the price of every device. `of_device`:
    prices by device id."""

    text: str
    of_all: Price | None = None
    of_device: Mapping[str, Price] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text

    def price(self, device: str) -> Price | None:
        """Return the user's price of the device with this id; None if there is none."""
        return self.of_all or self.of_device.get(device)


def read_own_prices(text: str) -> OwnPrices:
    """Return the prices that --price gives: one price; prices by device, such as `h100: 2.10 USD, a100: 1.39 USD`; or a
    YAML or JSON file with such a line for each device. Raises RecipeError if the text is none of these."""
    if parse_price(text):
        return OwnPrices(text, require_currency(text))
    if path_kind(text) == "file":
        return OwnPrices(text, None, _read_price_file(text))
    if PurePath(text).suffix in _FILE_SUFFIXES:
        raise RecipeError(f"price file `{text}` does not exist; it would hold lines such as `h100: 2.10 USD`")
    parts = [part.partition(":") for part in text.split(",")]
    if all(colon for _, colon, _ in parts):
        return OwnPrices(text, None, dict(_price_of_device(name.strip(), value.strip()) for name, _, value in parts))
    raise RecipeError(
        f"price `{text}` is not an amount and a currency, such as 1.99 USD or `h100: 1.99 USD`, nor a file of such "
        "prices"
    )


def require_currency(text: str) -> Price:
    """Return the price in a text such as "1.99 USD". Raises RecipeError if it has no amount, or no currency."""
    price = parse_price(text)
    if price is None:
        raise RecipeError(f"price `{text}` is not an amount and a currency, such as 1.99 USD")
    if not price.currency:
        raise RecipeError(f"price `{text}` names no currency; write such as `{price.amount:g} USD`")
    return price


def _read_price_file(path: str) -> Mapping[str, Price]:
    try:
        entries = read_yaml(path)
        if not isinstance(entries, Mapping) or not entries:
            raise RecipeError("it holds no prices; write a line for each device, such as `h100: 2.10 USD`")
        return dict(_price_of_device(str(name), value) for name, value in entries.items())
    except RecipeError as err:
        raise RecipeError(f"{path}: {err}") from None


def _price_of_device(name: str, value: Any) -> tuple[str, Price]:
    """Return the id of the device with this name, and its price. Raises RecipeError if device or price is not
    understood."""
    price = parse_price(value)
    if price is None or not price.currency:
        amount = f"{price.amount:g}" if price else "1.99"
        raise RecipeError(f"`{name}: {value}` is not an amount and a currency, such as `{name}: {amount} USD`")
    return devices.find_device(name)[0].id, price
