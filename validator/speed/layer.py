"""What one layer costs in the two passes of a micro batch."""

from __future__ import annotations

from validator.memory.run import Run
from validator.memory.shapes import Block

from .attention import attention
from .cost import Cost
from .elementwise import elementwise
from .experts import experts
from .products import products
from .quantization import quantization
from .rates import Rates

PARTS = (products, attention, experts, elementwise, quantization)


def layer_costs(run: Run, rates: Rates, block: Block) -> tuple[Cost, ...]:
    """Costs on the device, by term."""
    inside = run.of(block)
    return tuple(part(inside, rates, block) for part in PARTS)
