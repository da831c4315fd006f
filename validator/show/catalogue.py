"""`list` for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from validator import printable
from validator.diagnostic import RecipeError
from validator.quoting import join
from validator.recipes.catalogue import Row
from validator.show.clock import number
from validator.show.table import table

TITLES = ("name", "model", "machine", "method", "device_gib", "host_gib", "samples", "hours", "verdict")
# What a narrow terminal does without: the name says the method and the model's size.
SPARE = ("model", "method", "host_gib", "samples", "hours")


def text(rows: Sequence[Row], machine: str | None = None, model: str | None = None) -> str:
    """The rows as a table. Raises RecipeError where there is none for the machine and the model that are asked for,
    with the command that makes one."""
    if not rows:
        asked = [word for key, value in (("--model", model), ("--machine", machine)) if value for word in (key, value)]
        plan = join(["lmf-recipes", "plan", *asked, *(("--write", "FILE.yaml") if model else ())])
        raise RecipeError(f"no recipe matches; `{plan}` makes one in a second, `lmf-recipes list` shows all there are")
    return printable.lines(table(TITLES, map(_cells, rows), SPARE))


def _cells(row: Row) -> list[object]:
    told = {"hours": f"{number(row.hours.low)}-{number(row.hours.high)}" if row.hours else None}
    return [told.get(title, getattr(row, title)) for title in TITLES]
