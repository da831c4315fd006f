"""What `calibrate` measured, as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from validator import printable
from validator.measure.kept import Measured
from validator.measure.log import Timed
from validator.quoting import quote
from validator.show.clock import between, lasting, number
from validator.show.table import table

_HEADS = ("machine", "recipe", "a step took", "predicted", "ratio", "steps", "date")


def text(measured: Measured, timed: Timed, correction: float) -> str:
    """A step as it ran beside what is predicted for it, and what comes of that; `correction` over all recipes."""
    tokens = f" of {timed.tokens:,.0f} tokens" if timed.tokens else ""
    took = f"{lasting(timed.seconds)} ({between(timed.low, timed.high)})"
    lines = [
        f"{measured.machine}: a step took {took}, the median of {timed.steps}{tokens}; "
        f"predicted: {lasting(measured.expected)}",
        f"kept: what is predicted for {measured.machine} is multiplied by {number(correction)} from now on; "
        f"`lmf-recipes calibrate --forget {quote(measured.machine)}` takes it back",
    ]
    if timed.allocated_gib:
        lines.append(f"memory: {timed.allocated_gib:.1f} GiB of live tensors at most, on the first device")
    return printable.lines(lines)


def listed(every: Sequence[Measured]) -> str:
    """One line for each recipe and machine."""
    if not every:
        return "nothing was measured yet: lmf-recipes calibrate RECIPE\n"
    rows = (
        (
            each.machine,
            each.recipe,
            lasting(each.seconds),
            lasting(each.expected),
            number(each.ratio),
            each.steps,
            each.date,
        )
        for each in every
    )
    return printable.lines(table(_HEADS, rows))
