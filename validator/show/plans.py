"""`plan` for a terminal: tables and sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from validator import printable
from validator.plan.rows import ChoiceRow, PlanRow, Rows, ScaleRow, TightRow, UpgradeRow
from validator.show.clock import between, lasting, number
from validator.show.table import table, width

_PLANS = ("method", "time", "GiB/device", "to spare", "GiB/host", "micro", "accum.", "length")
_CHOICES = ("model", "recommended", "method", "time", "GiB/device", "to spare", "GiB/host", "cost")
_SCALE = ("devices", "time", "device hours", "efficiency", "with", "micro")
_EFFICIENCY = "efficiency: device hours of the fewest devices on which it fits, over those of so many"
# What a narrow terminal does without.
_SPARE = ("GiB/host", "to spare", "recommended")
_BY_LENGTH = "first row by mean length of samples; yours: `lmf-recipes data FILE --model M`"
_NO_REMEDY = "no one change helps: another method, shorter samples, more host memory, more or larger devices"
_COST = "cost: doublings between your samples and the recommended number, and of a step's time by traffic and waiting"


def text(rows: Rows, following: Sequence[str] = ()) -> str:
    """The answer as lines of text, and the commands that may follow."""
    ram = f"{rows.machine.host_ram_gib:g} GiB of host memory" if rows.machine.host_ram_gib else "host memory not known"
    lines = [f"{rows.model or 'models'} on {rows.machine.name}, {ram}"]
    if rows.plans:
        lines += [*_plans(rows.plans), *_by_length(rows.plans[0]), *_scale(rows.scale)]
    elif rows.choices:
        lines += [*table(_CHOICES, map(_choice, rows.choices), _SPARE), *(_wrapped(_COST) if rows.samples else ())]
        lines += _by_length(rows.choices[0])
    elif rows.reasons:
        lines += [
            "no such run passes `check`, whatever its memory:",
            *(line for each in rows.reasons for line in _wrapped(each, "  ")),
            *_remedies(rows.upgrades),
        ]
    else:
        lines += [*_nothing(rows.tight), *(_remedies(rows.upgrades) or [_NO_REMEDY])]
    lines += [line for note in rows.notes for line in _wrapped(f"note: {note}")]
    lines += [f"{word}: {command}" for word, command in zip(("next", "  or"), following, strict=False)]
    return printable.lines(lines)


def _plans(rows: Iterable[PlanRow]) -> Iterator[str]:
    """The figures of each plan as a row, and its words below."""
    rows = list(rows)
    titles, *figures = table(_PLANS, map(_figures, rows), _SPARE)
    yield titles
    for row, line in zip(rows, figures, strict=True):
        yield line
        for words in _words(row):
            yield from _wrapped(words, "    ")


def _figures(row: PlanRow) -> tuple[object, ...]:
    return (row.method, _hours(row.hours), row.device_gib, row.headroom_gib, row.host_gib, row.micro_batch,
            row.accumulation, row.cutoff_len)  # fmt: skip


def _hours(hours: tuple[float, float, float] | None) -> str:
    """`5-9 h`; a point would pretend."""
    return between(3600 * hours[0], 3600 * hours[2]).replace(" to ", "-") if hours else "not known"


def _by_length(row: PlanRow) -> Iterator[str]:
    """How long a plan takes at a few mean lengths, where nothing tells how long samples are."""
    if row.by_length:
        yield from _wrapped(_BY_LENGTH)
        titles = [f"{tokens:,} tokens" for tokens in row.by_length]
        yield from (f"  {line}" for line in table(titles, [[*map(_hours, row.by_length.values())]]))


def _scale(rows: Sequence[ScaleRow]) -> Iterator[str]:
    """The first plan's method on each number of devices."""
    if not rows:
        return
    yield ""
    yield from table(_SCALE, map(_scaled, rows))
    if any(row.hours for row in rows):
        yield from _wrapped(_EFFICIENCY)


def _scaled(row: ScaleRow) -> tuple[object, ...]:
    if row.micro_batch is None:
        return (row.machine, "does not fit", "", "", "", "")
    spent = f"{number(row.device_hours)}{f', {_money(row)}' if row.money else ''}" if row.device_hours else ""
    share = f"{row.efficiency:.0%}" if row.efficiency else ""
    return (row.machine, _hours(row.hours), spent, share, row.zero or "", row.micro_batch)


def _money(row: ScaleRow | PlanRow) -> str:
    return f"{number(row.money.expected)} {row.money.currency}".rstrip() if row.money else ""


def _words(row: PlanRow) -> Iterator[str]:
    yield f"{f'with {row.zero}, ' if row.zero else ''}gives up: {row.gives_up}"
    if row.hours:
        samples = f" for {row.samples:,} samples" if row.samples else ""
        yield f"{lasting(3600 * row.hours.expected)} expected{samples}, {_spent(row)}; bottleneck: {row.bottleneck}"
    if row.nearest:
        yield f"nearest recipe: {row.nearest}"


def _spent(row: PlanRow) -> str:
    devices = f"{number(row.device_hours)} device hours" if row.device_hours else ""
    return ", ".join(filter(None, (devices, _money(row))))


def _wrapped(line: str, indent: str = "") -> list[str]:
    """The line in as many as the terminal needs, broken between words."""
    return textwrap.wrap(line, width(), initial_indent=indent, subsequent_indent=indent or "  ",
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def _choice(row: ChoiceRow) -> tuple[object, ...]:
    return (row.model.rpartition("/")[2], row.recommended, row.method, _hours(row.hours), row.device_gib,
            row.headroom_gib, row.host_gib, row.cost)  # fmt: skip


def _nothing(tight: TightRow | None) -> list[str]:
    if tight is None:
        return ["nothing fits, even with every saving that is tried"]
    zero = f" with {tight.zero}" if tight.zero else ""
    expected = f"expected are {tight.device_gib} GiB a device and {tight.host_gib} a host"
    return _wrapped(f"nothing fits with a margin; tight is {tight.method}{zero}, micro batch 1, cutoff_len "
                    f"{tight.cutoff_len}: {expected}, and it may run out of memory")  # fmt: skip


def _remedies(upgrades: Iterable[UpgradeRow]) -> list[str]:
    return [line for each in upgrades for line in _wrapped(_remedy(each))]


def _remedy(row: UpgradeRow) -> str:
    ram = f" with {row.host_ram_gib:g} GiB of host memory" if row.host_ram_gib else ""
    return f"it would on {row.machine}{ram}: {row.method}; {row.note}"
