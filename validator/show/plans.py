"""`plan` for a terminal: tables and sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from validator.plan.rows import ChoiceRow, PlanRow, Rows, TightRow, UpgradeRow
from validator.show.table import table, width

_PLANS = ("method", "speed", "GiB/device", "to spare", "GiB/host", "micro", "accum.", "length")
_CHOICES = ("model", "recommended", "method", "speed", "GiB/device", "to spare", "GiB/host", "cost")
# What a narrow terminal does without.
_SPARE = ("GiB/host", "to spare")
_NO_REMEDY = "no one change helps: another method, shorter samples, more host memory, more or larger devices"
_COST = "cost: doublings between your samples and the recommended number, one more for each speed below fast"


def text(rows: Rows, following: Sequence[str] = ()) -> str:
    """The answer as lines of text, and the commands that may follow."""
    ram = f"{rows.machine.host_ram_gib:g} GiB of host memory" if rows.machine.host_ram_gib else "host memory not known"
    lines = [f"{rows.model or 'models'} on {rows.machine.name}, {ram}"]
    if rows.plans:
        lines += _plans(rows.plans)
    elif rows.choices:
        lines += [*table(_CHOICES, map(_choice, rows.choices), _SPARE), *(_wrapped(_COST) if rows.samples else ())]
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
    return "\n".join(lines) + "\n"


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
    return (row.method, row.speed, row.device_gib, row.headroom_gib, row.host_gib, row.micro_batch, row.accumulation,
            row.cutoff_len)  # fmt: skip


def _words(row: PlanRow) -> Iterator[str]:
    yield f"{f'with {row.zero}, ' if row.zero else ''}gives up: {row.gives_up}"
    if row.nearest:
        yield f"nearest recipe: {row.nearest}"


def _wrapped(line: str, indent: str = "") -> list[str]:
    """The line in as many as the terminal needs, broken between words."""
    return textwrap.wrap(line, width(), initial_indent=indent, subsequent_indent=indent or "  ",
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def _choice(row: ChoiceRow) -> tuple[object, ...]:
    return (row.model.rpartition("/")[2], row.recommended, row.method, row.speed, row.device_gib, row.headroom_gib,
            row.host_gib, row.cost)  # fmt: skip


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
