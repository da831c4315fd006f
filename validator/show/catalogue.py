"""`list` for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from validator import printable
from validator.diagnostic import RecipeError
from validator.recipes.catalogue import Row
from validator.show.clock import number
from validator.show.table import table

TITLES = ("name", "model", "machine", "method", "device_gib", "host_gib", "samples", "hours", "verdict")
# What a narrow terminal does without: the name says the method and the model's size.
SPARE = ("model", "method", "host_gib", "samples", "hours")


def text(rows: Sequence[Row]) -> str:
    """The rows as a table. Raises RecipeError where there is none."""
    if not rows:
        raise RecipeError("no recipe matches; `lmf-recipes list` shows all, `lmf-recipes plan` what else fits")
    return printable.lines(table(TITLES, map(_cells, rows), SPARE))


def _cells(row: Row) -> list[object]:
    told = {"hours": f"{number(row.hours.low)}-{number(row.hours.high)}" if row.hours else None}
    return [told.get(title, getattr(row, title)) for title in TITLES]
