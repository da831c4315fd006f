"""The machines that `plan` compares, as a table: what the training costs on each and how long it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from validator.output.terminal import columns_left_out, format_table, wrap_to_terminal
from validator.plan.plan_json import OFFLOAD_LEFT_OUT, AnswerRows
from validator.plan.rented_machines import MachineOffer, offers_to_show, unpriced_offers
from validator.wording import format_duration, format_duration_range, plural, two_digits

_COLUMNS = (
    "machine",
    "cost",
    "time",
    "low-high",
    "price",
    "provider",
    "method",
    "micro",
    "batch",
    "GiB/device",
    "with",
)
# What a narrow terminal does without.
_OPTIONAL_COLUMNS = ("GiB/device", "micro", "batch", "with", "provider")
# More rows than these are too many to read: then only those that help to choose are shown.
_MOST_ROWS = 24
# Notes on one machine that the notes on all of them stand for here.
_SAID_OF_ALL = (OFFLOAD_LEFT_OUT, "times are for samples", "samples of an optimizer step")


def machine_lines(rows: AnswerRows) -> Iterator[str]:
    """Yield the head, the table and the notes on machines and prices."""
    offers = [*{(each.machine, each.cutoff_len): each for each in rows.machines}.values()]
    number, fitting = (len({each.machine for each in some}) for some in (offers, [one for one in offers if one.fits]))
    samples = rows.plans[0].samples if rows.plans else rows.samples
    training = f"{rows.model}{f', {samples:,} samples' if samples else ''}"
    fit = f"{fitting or 'none'} {'fits' if fitting == 1 else 'fit'}{'; cheapest first' if fitting > 1 else ''}"
    yield from wrap_to_terminal(f"{training}: {number} {plural(number, 'machine')} compared, {fit}")
    shown = offers_to_show(offers) if len(offers) > _MOST_ROWS else offers
    if fitting and shown:
        yield from _table_lines(shown)
    if len(shown) < len(offers):
        yield from _lines_on_others(offers, shown)
    if fitting:
        yield from _sample_lines(rows)
    if parts := dict.fromkeys(f"{each.part_of} as {each.machine}" for each in rows.machines if each.part_of):
        why = "more devices would harm the model, and `plan --machine M` says why"
        yield from wrap_to_terminal(f"note: compared are {', '.join(parts)}: {why}")
    yield from _host_memory_lines(offers, shown)
    yield from _price_lines(offers)


def notes_on_first_row(notes: Iterable[str]) -> list[str]:
    """Return the notes on the first machine that no note on all of them says already."""
    return [f"first row: {note}" for note in notes if not note.startswith(_SAID_OF_ALL)]


def _table_lines(shown: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield the table, with a line before the machines whose samples are cut shorter than those of the first."""
    titles, *lines = format_table(_COLUMNS, map(_cells, shown), _OPTIONAL_COLUMNS)
    yield titles
    length = shown[0].cutoff_len
    for offer, line in zip(shown, lines, strict=True):
        if offer.fits and offer.cutoff_len != length:
            length = offer.cutoff_len
            yield from wrap_to_terminal(f"with samples cut at {length} tokens, of some {offer.mean_tokens} each:")
        yield line
    yield from columns_left_out(_COLUMNS, map(_cells, shown), _OPTIONAL_COLUMNS)


def _cells(offer: MachineOffer) -> tuple[object, ...]:
    price = f"{offer.price.amount:.2f} {offer.price.currency}".rstrip() if offer.price else "not known"
    provider = (offer.price.provider or "yours") if offer.price else ""
    if not offer.fits:
        return (offer.machine, "does not fit", "", "", price, provider, "", "", "", "", "")
    hours = offer.hours
    return (
        offer.machine,
        f"{two_digits(offer.money.expected)} {offer.money.currency}".rstrip() if offer.money else "not known",
        format_duration(3600 * hours.expected) if hours else "not known",
        format_duration_range(3600 * hours.low, 3600 * hours.high).replace(" to ", "-") if hours else "",
        price,
        provider,
        offer.method,
        offer.micro_batch,
        offer.effective_batch,
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
        times = (f"{each.machine}{_in_time(each)}{_cut(each, offers[0])}" for each in unpriced)
        yield from wrap_to_terminal(f"no list price: {', '.join(times)}")


def _in_time(offer: MachineOffer) -> str:
    return f" {format_duration(3600 * offer.hours.expected)}" if offer.hours else ""


def _cut(offer: MachineOffer, first: MachineOffer) -> str:
    return "" if offer.cutoff_len == first.cutoff_len else f" (samples cut at {offer.cutoff_len})"


def _sample_lines(rows: AnswerRows) -> Iterator[str]:
    """Yield which samples the rows stand for, and why the times span so much where their lengths are not known."""
    first = rows.machines[0]
    each = f", of some {first.mean_tokens} each" if first.mean_tokens else ""
    differ = len({offer.effective_batch for offer in rows.machines if offer.fits}) > 1
    steps = "; batch: samples of an optimizer step; a larger batch makes fewer steps" if differ else ""
    yield from wrap_to_terminal(f"note: times are for samples cut at {first.cutoff_len} tokens{each}{steps}")
    if rows.plans and rows.plans[0].by_length:
        yield from wrap_to_terminal(
            "note: low-high spans short samples to samples of all these tokens, as their lengths are not known "
            "(`lmf-recipes data FILE --model M` tells yours)"
        )


def _host_memory_lines(offers: Sequence[MachineOffer], shown: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield for whom host memory is assumed, for whom it is not known, and for whom too little is given."""
    assumed = any(offer.assumes_host_ram and offer.host_ram_gib for offer in shown)
    unknown = dict.fromkeys(one.device.id for one in shown if one.host_ram_gib is None)
    if assumed or unknown:
        parts = ["that of a usual server is assumed"] if assumed else []
        if unknown:
            parts.append(f"not known of {', '.join(unknown)}, so that offload is left out there")
        yield from wrap_to_terminal(f"note: host memory: {'; '.join(parts)}; --host-ram gives it")
    for offer in offers:
        if offer.host_gib_needed:
            needed = f"fits from {offer.host_gib_needed} GiB of host memory a node, {offer.host_ram_gib:g} are given"
            yield from wrap_to_terminal(
                f"note: {offer.machine}: {needed}; the files of the weights pass through it while they load"
            )


def _price_lines(offers: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield where the prices come from and how to give others."""
    listed = [offer.price for offer in offers if offer.price and offer.price.date and offer.price.source]
    own = "your own: --price '1.99 USD', 'h100: 2.10 USD', or a FILE with such lines"
    if listed:
        dates = sorted({str(price.date) for price in listed})
        span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        feeds = ", ".join(dict.fromkeys("/".join(str(price.source).split("/")[2:5]) for price in listed))
        yield from wrap_to_terminal(
            f"note: price: of a device and hour, on demand, as recorded by {feeds} on {span} from the providers' lists "
            f"(links: --format json), without storage and tax; {own}"
        )
    elif any(offer.price is None for offer in offers):
        yield from wrap_to_terminal(f"note: no public list price is known; {own}")
    yield from _own_price_lines(offers)
    if len({offer.money.currency for offer in offers if offer.money}) > 1:
        yield "note: costs in different currencies are not compared"


def _own_price_lines(offers: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield that one price of the user's own is taken for different devices, if it is."""
    own = {offer.price for offer in offers if offer.price and offer.price.provider is None}
    kinds = {offer.device.id for offer in offers}
    if len(own) == 1 and len(kinds) > 1 and all(offer.price in own for offer in offers):
        price, example = next(iter(own)), offers[0].device.id
        yield from wrap_to_terminal(
            f"note: price: your {price} is taken for every device; --price '{example}: {price}' is for one of them"
        )
