"""`plan` for a terminal: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from validator.plan.rows import ChoiceRow, PlanRow, Rows, UpgradeRow
from validator.show.table import table

_PLANS = ("method", "speed", "GiB/device", "to spare", "GiB/host", "ZeRO file", "micro", "accum.", "length",
          "nearest recipe", "gives up")  # fmt: skip
_CHOICES = ("model", "recommended", "method", "speed", "GiB/device", "to spare", "GiB/host", "cost")
_COST = "cost: doublings between your samples and the recommended number, and one for each class slower than fast"


def text(rows: Rows) -> str:
    """The answer as lines of text."""
    ram = f"{rows.machine.host_ram_gib:g} GiB of host memory" if rows.machine.host_ram_gib else "host memory not known"
    lines = [f"{rows.model or 'base models'} on {rows.machine.name}, {ram}"]
    if rows.plans:
        lines += table(_PLANS, map(_plan, rows.plans))
    elif rows.choices:
        lines += [*table(_CHOICES, map(_choice, rows.choices)), _COST]
    elif rows.reasons:
        lines += ["no such run passes `check`, whatever its memory:", *(f"  {each}" for each in rows.reasons)]
    else:
        lines += ["nothing fits, even with every saving that is tried", *_remedies(rows.upgrades)]
    return "\n".join([*lines, *(f"note: {note}" for note in rows.notes)]) + "\n"


def _plan(row: PlanRow) -> tuple[object, ...]:
    return (row.method, row.speed, row.device_gib, row.headroom_gib, row.host_gib, row.zero, row.micro_batch,
            row.accumulation, row.cutoff_len, row.nearest, row.gives_up)  # fmt: skip


def _choice(row: ChoiceRow) -> tuple[object, ...]:
    return (row.model, row.recommended, row.method, row.speed, row.device_gib, row.headroom_gib, row.host_gib, row.cost)


def _remedies(upgrades: Iterable[UpgradeRow]) -> Iterator[str]:
    for each in upgrades:
        ram = f" with {each.host_ram_gib:g} GiB of host memory" if each.host_ram_gib else ""
        yield f"it would on {each.machine}{ram}: {each.method}; {each.note}"
