"""Price of a device per hour, as a header block or a command line writes it (`1.99 USD`), and the cost of a run."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from validator.physics import Band
from validator.run.recipe_arguments import finite_number

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
