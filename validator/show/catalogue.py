"""`list` for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from validator.diagnostic import RecipeError
from validator.recipes.catalogue import Row
from validator.show.table import table

TITLES = ("name", "model", "machine", "method", "device_gib", "host_gib", "samples", "verdict")
# What a narrow terminal does without: the name says the method and the model's size.
SPARE = ("model", "method", "host_gib", "samples")


def text(rows: Sequence[Row]) -> str:
    """The rows as a table. Raises RecipeError where there is none."""
    if not rows:
        raise RecipeError("no recipe matches; `lmf-recipes list` shows all, `lmf-recipes plan` what else fits")
    return "\n".join(table(TITLES, ([getattr(row, title) for title in TITLES] for row in rows), SPARE)) + "\n"
