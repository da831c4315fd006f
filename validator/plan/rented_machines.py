"""Which machine to rent: the same training on many machines, with its cost on each at public list prices or at the
user's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from validator.errors import RecipeError
from validator.knowledge import devices, prices
from validator.knowledge.devices import Machine
from validator.knowledge.models import Model
from validator.physics import Band
from validator.plan.answer import find_best_plan, read_machine
from validator.recipe.safe_read import path_kind, read_yaml
from validator.run.dataset_registry import Registry
from validator.run.recipe_arguments import Cost, Price, parse_price
from validator.wording import four_digits, map_floats

ALL_MACHINES = "all"
# Devices of one server that are compared, as far as its usual server has so many.
_COUNTS = (1, 2, 4, 8, 16)
# Full servers that are compared where nothing fits one of them.
_NODES = (2, 4)


@dataclass(frozen=True)
class OwnPrices:
    """Prices that the user gives. `text`: the value of --price. `of_all`: the price of every device. `of_device`:
    prices by device id, from a file."""

    text: str
    of_all: Price | None = None
    of_device: Mapping[str, Price] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text

    def price(self, device: str) -> Price | None:
        """Return the user's price of the device with this id; None if there is none."""
        return self.of_all or self.of_device.get(device)


def read_own_prices(text: str) -> OwnPrices:
    """Return the prices that --price gives: one price, or a YAML or JSON file with a price for each device, such as
    `h100: 2.10 USD`. Raises RecipeError if the text is no price and no such file."""
    if price := parse_price(text):
        return OwnPrices(text, price)
    if path_kind(text) != "file":
        raise RecipeError(
            f"price `{text}` is not an amount and a currency, such as 1.99 USD, nor a file of such prices"
        )
    try:
        entries = read_yaml(text)
    except RecipeError as err:
        raise RecipeError(f"{text}: {err}") from None
    if not isinstance(entries, Mapping) or not entries:
        raise RecipeError(f"{text}: it holds no prices; write a line for each device, such as `h100: 2.10 USD`")
    found: dict[str, Price] = {}
    for name, value in entries.items():
        price = parse_price(value)
        if price is None:
            raise RecipeError(f"{text}: `{name}: {value}` is not an amount and a currency, such as `{name}: 1.99 USD`")
        try:
            found[devices.find_device(str(name))[0].id] = price
        except RecipeError as err:
            raise RecipeError(f"{text}: {err}") from None
    return OwnPrices(text, None, found)


class RentalPrice(NamedTuple):
    """Price of one device for one hour. `provider`, `date` and `source` (a link) belong to a public list price; None
    for a price of the user's own."""

    amount: float
    currency: str
    provider: str | None = None
    date: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}".rstrip()


@dataclass(frozen=True)
class MachineOffer:
    """A machine and the first plan for it, as `plan --machine` finds it. `zero`: its DeepSpeed file. `price`: None if
    no price of the device is known. `money`: the cost of all device hours. What describes the plan is None if nothing
    fits."""

    machine: str
    devices: int
    fits: bool
    price: RentalPrice | None
    method: str | None = None
    zero: str | None = None
    micro_batch: int | None = None
    cutoff_len: int | None = None
    device_gib: float | None = None
    hours: Band | None = None
    device_hours: float | None = None
    money: Cost | None = None


@dataclass(frozen=True)
class RentalQuestion:
    """What shall be trained: the arguments of `find_answer` that are the same for all machines."""

    model: Model
    samples: int | None
    host_ram_gib: float | None
    length: int | None
    method: str | None
    stage: str
    own: Registry | None
    network: str | None
    prices: OwnPrices | None

    def offer(self, name: str) -> MachineOffer:
        """Return the first plan for the machine of this name, and what it costs."""
        machine = read_machine(name, self.host_ram_gib)._replace(network=self.network)
        plan = find_best_plan(self.model, machine, self.samples, self.length, self.method, self.stage, self.own)
        price = rental_price(machine.device.id, self.prices)
        if plan is None:
            return MachineOffer(str(machine), machine.world, False, price)
        hours = plan.hours
        cost = Price(price.amount, price.currency).of(machine.world, hours) if price and hours else None
        return MachineOffer(
            machine=str(machine),
            devices=machine.world,
            fits=True,
            price=price,
            method=plan.draft.method,
            zero=plan.draft.sharding,
            micro_batch=plan.draft.micro_batch,
            cutoff_len=plan.draft.length,
            device_gib=round(plan.device_gib, 1),
            hours=map_floats(hours, four_digits),
            device_hours=four_digits(four_digits(hours.expected) * machine.world) if hours else None,
            money=map_floats(cost, four_digits),
        )


def rental_price(device: str, own: OwnPrices | None) -> RentalPrice | None:
    """Return the price of the device with this id: the user's own, else the public list price; None if neither is
    known."""
    if own and (price := own.price(device)):
        return RentalPrice(price.amount, price.currency)
    listed = prices.list_price(device)
    return RentalPrice(*listed) if listed else None


def machines_to_compare(text: str) -> list[str]:
    """Return the names of the machines that --machines asks for: `all`, or a list such as `h100,2xa100,ascend`. A
    device without a number stands for one to all devices of its usual server, and a vendor for all its devices. Raises
    RecipeError if a name is not known."""
    words = [word for part in text.split(",") if (word := part.strip())]
    if not words:
        raise RecipeError(f"--machines `{text}` names no device; write `{ALL_MACHINES}` or such as h100,a100,4090")
    return list(dict.fromkeys(name for word in words for name in _machines_of_word(word)))


def _machines_of_word(word: str) -> Iterator[str]:
    known = [device for key in devices.device_ids() if (device := devices.find_device(key)[0]).usable_gib]
    if word.lower() == ALL_MACHINES or word.lower() in {device.vendor for device in known}:
        chosen = (device for device in known if word.lower() in (ALL_MACHINES, device.vendor))
        yield from (name for device in chosen for name in _machines_of(Machine(1, 1, device)))
        return
    machine = read_machine(word, None)
    try:
        devices.find_device(word)
    except RecipeError:  # a number stands before or behind the device
        yield str(machine)
    else:
        yield from _machines_of(machine)


def _machines_of(one: Machine) -> Iterator[str]:
    yield from (str(one._replace(devices=count)) for count in _COUNTS if count <= one.device.server_devices)


def several_servers(names: Iterable[str]) -> list[str]:
    """Return two and four full servers with each of the devices of these machines, for a model that fits no single
    one."""
    full = {devices.parse_machine(name).device.id: devices.parse_machine(name).device for name in names}
    large = [device for device in full.values() if device.server_devices >= _COUNTS[-2]]
    return [str(Machine(nodes, device.server_devices, device)) for device in large for nodes in _NODES]


def order_offers(offers: Iterable[MachineOffer], own: OwnPrices | None) -> list[MachineOffer]:
    """Return the offers, cheapest first. Behind them come machines without a price or without known hours, the soonest
    first, and machines on which nothing fits. Costs in different currencies are not compared: those in a currency of
    the user's own prices come first."""
    mine = [price.currency for price in ([own.of_all] if own and own.of_all else own.of_device.values() if own else ())]

    def order(offer: MachineOffer) -> tuple[bool, bool, int, float, float]:
        currency = offer.money.currency if offer.money else ""
        rank = mine.index(currency) if currency in mine else len(mine)
        cost, hours = (offer.money.expected if offer.money else 0.0), offer.hours.expected if offer.hours else math.inf
        return not offer.fits, offer.money is None, rank, cost, hours

    return sorted(offers, key=order)


def offers_to_show(ordered: Sequence[MachineOffer]) -> list[MachineOffer]:
    """Return the offers of a long list that help to choose, in the given order: those with a cost that no other offer
    in their currency beats in both cost and hours, and the cheapest machine with each common device."""
    soonest: dict[str, float] = {}
    kinds: set[str] = set()
    chosen = []
    for offer in ordered:
        if offer.money is None or offer.hours is None:
            continue
        device = devices.parse_machine(offer.machine).device
        is_sooner = offer.hours.expected < soonest.get(offer.money.currency, math.inf)
        if is_sooner or (device.common and device.id not in kinds):
            chosen.append(offer)
        kinds.add(device.id)
        soonest[offer.money.currency] = min(offer.hours.expected, soonest.get(offer.money.currency, math.inf))
    return chosen


def unpriced_offers(ordered: Sequence[MachineOffer]) -> list[MachineOffer]:
    """Return for each common device without a price the offer with the fewest devices that fits."""
    fewest: dict[str, MachineOffer] = {}
    for offer in sorted(ordered, key=lambda offer: offer.devices):
        if offer.fits and offer.price is None and (device := devices.parse_machine(offer.machine).device).common:
            fewest.setdefault(device.id, offer)
    return [offer for offer in ordered if offer in fewest.values()]
