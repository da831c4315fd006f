"""What weights that train cost beside their products. Seconds of a layer in a micro batch."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block

from .cost import Cost
from .rates import Rates
from .terms import Term


def weights(run: Run, rates: Rates, block: Block) -> Cost:
    """Autocast makes a half-precision copy of each for a pass, and brings its gradient back; with accumulation that is
    added to an earlier one."""
    if run.adapts:
        return Cost(Term.ELEMENTWISE, 0.0, 0.0)
    cast = (run.sizes.trained + 2.0) if run.sizes.casts else 0.0
    added = 3 * run.sizes.gradient if run.work.accumulation > 1 else 0.0
    seconds = block.matrices / rates.bandwidth
    return Cost(Term.ELEMENTWISE, cast * seconds, (cast + added) * seconds)
