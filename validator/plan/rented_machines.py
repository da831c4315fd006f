"""Compares machines to rent: what the same training costs on each, at public list prices or at the user's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from validator.errors import RecipeError
from validator.knowledge import devices, prices
from validator.knowledge.devices import Device, Machine
from validator.knowledge.models import Model
from validator.knowledge.prices import RentalPrice
from validator.physics import Band
from validator.physics.estimate import GIB
from validator.plan.answer import plans_on_machine, read_machine
from validator.plan.own_prices import OwnPrices
from validator.plan.search import Plan
from validator.run.dataset_registry import Registry
from validator.run.prediction import predict
from validator.run.recipe_arguments import Cost, Price
from validator.wording import four_digits, map_floats

ALL_MACHINES = "all"
# Devices of one server that are compared, as far as its usual server has so many.
_COUNTS = (1, 2, 4, 8, 16)
# Full servers that are compared where nothing fits one of them.
_NODES = (2, 4)
# Main memory that is never too little.
_PLENTY_GIB = 1e6


@dataclass(frozen=True)
class MachineOffer:
    """A machine and a plan for it, as `plan --machine` finds it: the first plan, or the first for shorter samples.
    `part_of`: the machine that was asked for, if all of its devices would harm the model; None if not.
    `host_ram_gib`: main memory of a node; None if not known. `assumes_host_ram`: it is that of a usual server. `zero`:
    the plan's DeepSpeed file. `effective_batch`: samples of an optimizer step. `mean_tokens`: the mean length of the
    samples that `hours` belong to. `price`: None if no price of the device is known. `money`: the cost of all device
    hours. What describes the plan is None if nothing fits. `host_gib_needed`: the main memory with which something
    would fit, if what the user gives is too little."""

    machine: str
    devices: int
    fits: bool
    price: RentalPrice | None
    host_ram_gib: float | None
    assumes_host_ram: bool
    method: str | None = None
    zero: str | None = None
    micro_batch: int | None = None
    effective_batch: int | None = None
    cutoff_len: int | None = None
    mean_tokens: int | None = None
    device_gib: float | None = None
    hours: Band | None = None
    device_hours: float | None = None
    money: Cost | None = None
    host_gib_needed: int | None = None
    part_of: str | None = None

    @property
    def device(self) -> Device:
        """The device that the machine has."""
        return devices.parse_machine(self.machine).device


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

    def offers(self, name: str) -> list[MachineOffer]:
        """Return the first plan for the machine of this name, and the first for shorter samples if there is one, with
        their costs. The machine offered is the part of it that the plan is for."""
        machine = read_machine(name, self.host_ram_gib)._replace(network=self.network)
        plans = self._plans(machine)
        asked, machine = machine, plans[0].draft.machine if plans else machine
        shorter = [plan for plan in plans if plan.draft.length < plans[0].draft.length]
        bare = MachineOffer(
            machine=str(machine),
            devices=machine.world,
            fits=bool(plans),
            price=rental_price(machine.device.id, self.prices),
            host_ram_gib=machine.host_ram_gib,
            assumes_host_ram=machine.has_usual_ram,
            host_gib_needed=None if plans else self._host_gib_needed(machine),
            part_of=str(asked) if machine != asked else None,
        )
        return [_offer_of_plan(bare, plan) for plan in (*plans[:1], *shorter[:1])] or [bare]

    def _plans(self, machine: Machine) -> list[Plan]:
        return plans_on_machine(self.model, machine, self.samples, self.length, self.method, self.stage, self.own)

    def _host_gib_needed(self, machine: Machine) -> int | None:
        """Return the main memory with which something fits; None if the user gives none, or more does not help."""
        if self.host_ram_gib is None:
            return None
        plans = self._plans(machine._replace(host_ram_gib=_PLENTY_GIB))
        needs = (found.high for plan in plans if (found := predict(plan.draft.run).host_memory))
        return min((math.ceil(each / GIB) for each in needs), default=None)


def _offer_of_plan(bare: MachineOffer, plan: Plan) -> MachineOffer:
    """Return the offer of a machine with what describes its plan."""
    price, hours, lengths = bare.price, plan.hours, plan.draft.lengths
    cost = Price(price.amount, price.currency).of(bare.devices, hours) if price and hours else None
    return replace(
        bare,
        method=plan.draft.method,
        zero=plan.draft.sharding,
        micro_batch=plan.draft.micro_batch,
        effective_batch=plan.draft.run.batch.effective_batch,
        cutoff_len=plan.draft.length,
        mean_tokens=round(sum(lengths) / len(lengths)) if lengths else None,
        device_gib=round(plan.device_gib, 1),
        hours=map_floats(hours, four_digits),
        device_hours=four_digits(four_digits(hours.expected) * bare.devices) if hours else None,
        money=map_floats(cost, four_digits),
    )


def rental_price(device: str, own: OwnPrices | None) -> RentalPrice | None:
    """Return the price of the device with this id: the user's own, else the public list price; None if neither is
    known."""
    if own and (price := own.price(device)):
        return RentalPrice(price.amount, price.currency)
    return prices.list_price(device)


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
    yield from (str(machine),) if _has_number(word) else _machines_of(machine)


def _has_number(word: str) -> bool:
    """True if a word of --machines says how many devices: it is no device, vendor or `all` then."""
    if word.lower() in {ALL_MACHINES, *(devices.find_device(key)[0].vendor for key in devices.device_ids())}:
        return False
    try:
        devices.find_device(word)
    except RecipeError:  # a number stands before or behind the device
        return True
    return False


def _machines_of(one: Machine) -> Iterator[str]:
    yield from (str(one._replace(devices=count)) for count in _COUNTS if count <= one.device.server_devices)


def several_servers(text: str) -> list[str]:
    """Return two and four full servers with each device that --machines names without a number, for a model that fits
    no single server."""
    words = (word for part in text.split(",") if (word := part.strip()) and not _has_number(word))
    machines = (devices.parse_machine(name) for word in words for name in _machines_of_word(word))
    full = {machine.device.id: machine.device for machine in machines}
    large = [device for device in full.values() if device.server_devices >= _COUNTS[-2]]
    return [str(Machine(nodes, device.server_devices, device)) for device in large for nodes in _NODES]


def order_offers(offers: Iterable[MachineOffer], own: OwnPrices | None) -> list[MachineOffer]:
    """Return the offers, cheapest first. Those for shorter samples than others come behind these, because their hours
    belong to other samples. Machines without a price or without known hours come after those with a cost, the soonest
    first, and machines on which nothing fits last. Costs in different currencies are not compared: those in a currency
    of the user's own prices come first."""
    mine = [price.currency for price in ([own.of_all] if own and own.of_all else own.of_device.values() if own else ())]

    def order(offer: MachineOffer) -> tuple[bool, int, bool, int, float, float]:
        currency = offer.money.currency if offer.money else ""
        rank = mine.index(currency) if currency in mine else len(mine)
        cost, hours = (offer.money.expected if offer.money else 0.0), offer.hours.expected if offer.hours else math.inf
        return not offer.fits, -(offer.cutoff_len or 0), offer.money is None, rank, cost, hours

    return sorted(offers, key=order)


def offers_to_show(ordered: Sequence[MachineOffer]) -> list[MachineOffer]:
    """Return the offers of a long list that help to choose, in the given order: those with a cost that no other offer
    for samples as long beats in both cost and hours, and the cheapest machine with each common device."""
    kinds: set[str] = set()
    chosen: list[MachineOffer] = []
    for offer in ordered:
        if offer.money is None or offer.hours is None:
            continue
        device = offer.device
        if (device.common and device.id not in kinds) or not any(_beats(other, offer) for other in chosen):
            chosen.append(offer)
        kinds.add(device.id)
    return chosen


def _beats(earlier: MachineOffer, offer: MachineOffer) -> bool:
    """True if an offer that stands earlier, so for samples at least as long, is no dearer and no later."""
    if not (earlier.money and offer.money and earlier.hours and offer.hours):
        return False
    no_dearer = earlier.money.currency == offer.money.currency and earlier.money.expected <= offer.money.expected
    return no_dearer and earlier.hours.expected <= offer.hours.expected


def unpriced_offers(ordered: Sequence[MachineOffer]) -> list[MachineOffer]:
    """Return for each common device without a price the offer that is done soonest; where hours are not known, that
    with the fewest devices."""
    soonest: dict[str, MachineOffer] = {}
    for offer in sorted(ordered, key=lambda each: (each.hours.expected if each.hours else math.inf, each.devices)):
        if offer.fits and offer.price is None and (device := offer.device).common:
            soonest.setdefault(device.id, offer)
    return [offer for offer in ordered if offer in soonest.values()]
