"""The machines that `plan` compares, as a table: what the training costs on each and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validator.output.terminal import columns_left_out, format_table, wrap_to_terminal
from validator.plan.plan_json import AnswerRows
from validator.plan.rented_machines import MachineOffer, offers_to_show, unpriced_offers
from validator.wording import format_duration, format_duration_range, two_digits

_COLUMNS = ("machine", "cost", "time", "low-high", "price", "method", "GiB/device", "with")
# What a narrow terminal does without.
_OPTIONAL_COLUMNS = ("GiB/device", "with")
# More rows than these are too many to read: then only those that help to choose are shown.
_MOST_ROWS = 24


def machine_lines(rows: AnswerRows) -> Iterator[str]:
    """Yield the head, the table and the notes on machines and prices."""
    offers = rows.machines
    fitting = sum(offer.fits for offer in offers)
    samples = rows.plans[0].samples if rows.plans else rows.samples
    training = f"{rows.model}{f', {samples:,} samples' if samples else ''}"
    yield from wrap_to_terminal(f"{training}: {len(offers)} machines compared, {fitting or 'none'} fit; cheapest first")
    shown = offers_to_show(offers) if len(offers) > _MOST_ROWS else offers
    if fitting and shown:
        yield from format_table(_COLUMNS, map(_cells, shown), _OPTIONAL_COLUMNS)
        yield from columns_left_out(_COLUMNS, map(_cells, shown), _OPTIONAL_COLUMNS)
    if len(shown) < len(offers):
        yield from _lines_on_others(offers, shown)
    yield from _price_lines(offers)


def _cells(offer: MachineOffer) -> tuple[object, ...]:
    price = f"{offer.price.amount:.2f} {offer.price.currency}".rstrip() if offer.price else "not known"
    if not offer.fits:
        return (offer.machine, "does not fit", "", "", price, "", "", "")
    hours = offer.hours
    return (
        offer.machine,
        f"{two_digits(offer.money.expected)} {offer.money.currency}".rstrip() if offer.money else "not known",
        format_duration(3600 * hours.expected) if hours else "not known",
        format_duration_range(3600 * hours.low, 3600 * hours.high).replace(" to ", "-") if hours else "",
        price,
        offer.method,
        offer.device_gib,
        offer.zero or "",
    )


def _lines_on_others(offers: Sequence[MachineOffer], shown: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield what the table leaves out of a long list."""
    if shown:
        yield from wrap_to_terminal(
            "shown: what no other machine beats in both cost and time, and the cheapest with each common device; "
            "--machines h100,a100 shows every number of these, --format json all"
        )
    if unpriced := unpriced_offers(offers):
        times = (f"{each.machine}{_in_time(each)}" for each in unpriced)
        yield from wrap_to_terminal(f"no list price: {', '.join(times)}")


def _in_time(offer: MachineOffer) -> str:
    return f" {format_duration(3600 * offer.hours.expected)}" if offer.hours else ""


def _price_lines(offers: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield where the prices come from and how to give others."""
    listed = [offer.price for offer in offers if offer.price and offer.price.provider and offer.price.date]
    own = "your own: --price '1.99 USD', or --price FILE with lines such as `h100: 2.10 USD`"
    if listed:
        providers = ", ".join(dict.fromkeys(str(price.provider) for price in listed))
        dates = sorted({str(price.date) for price in listed})
        span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        yield from wrap_to_terminal(
            f"note: price: of a device and hour, on-demand list prices of {providers}, read {span} (links: --format "
            f"json), without storage and tax; {own}"
        )
    elif any(offer.price is None for offer in offers):
        yield from wrap_to_terminal(f"note: no public list price is known; {own}")
    if len({offer.money.currency for offer in offers if offer.money}) > 1:
        yield "note: costs in different currencies are not compared"
