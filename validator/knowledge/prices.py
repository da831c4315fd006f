"""Public list prices of devices, from data/prices.yaml."""

from __future__ import annotations

from typing import NamedTuple

from .tables import yaml_table


class ListPrice(NamedTuple):
    """A provider's list price of one device for one hour. `date`: the day on which the list was read. `source`: link to
    the record of it."""

    amount: float
    currency: str
    provider: str
    date: str
    source: str


def list_price(device: str) -> ListPrice | None:
    """Return the list price of the device with this id; None if no list price of it is known."""
    entry = yaml_table("prices").get(device)
    if entry is None:
        return None
    return ListPrice(entry["usd"], "USD", entry["provider"], str(entry["date"]), entry["source"])
