"""Public list prices of devices, from data/prices.yaml."""

from __future__ import annotations

from typing import NamedTuple

from .tables import yaml_table


class RentalPrice(NamedTuple):
    """Price of one device for one hour. `provider`, `date` (the day on which its list was read) and `source` (a link to
    the record of it) belong to a public list price; None for a price of the user's own."""

    amount: float
    currency: str
    provider: str | None = None
    date: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}".rstrip()


def list_price(device: str) -> RentalPrice | None:
    """Return the list price of the device with this id; None if no list price of it is known."""
    entry = yaml_table("prices").get(device)
    if entry is None:
        return None
    return RentalPrice(entry["usd"], "USD", entry["provider"], str(entry["date"]), entry["source"])
