"""`list` for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from validator.diagnostic import RecipeError
from validator.recipes.catalogue import Row
from validator.show.table import table

_TITLES = ("name", "model", "machine", "method", "device_gib", "host_gib", "samples", "verdict")


def text(rows: Sequence[Row]) -> str:
    """The rows as a table. Raises RecipeError where there is none."""
    if not rows:
        raise RecipeError("no recipe matches; `lmf-recipes list` shows all")
    return "\n".join(table(_TITLES, map(_cells, rows))) + "\n"


def _cells(row: Row) -> tuple[object, ...]:
    return (row.name, row.model, row.machine, row.method, row.device_gib, row.host_gib, row.samples, row.verdict)
