"""A layer by its shapes: its linear modules, and how many elements of which kind it has."""

# Annotations are not postponed, as workload.py says: each start would pay for it.

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .linear import Linear

if TYPE_CHECKING:
    from .mixers import Mixer


@dataclass(eq=False)
class Block:
    """One kind of decoder layer. `experts` are elements of fused 3-D parameters, `vectors` norms, biases, sinks,
    routers, convolutions; `mixture`: experts are chosen, fused or not; `mixer`: what it has in place of attention, or
    beside it. Equal only to itself, so that looking up what was computed for it costs nothing."""

    linears: tuple[Linear, ...]
    experts: int
    vectors: int
    mixture: bool = False
    mixer: "Mixer | None" = None
    attends: bool = True

    def by_role(self, *roles: str) -> tuple[Linear, ...]:
        return tuple(linear for linear in self.linears if linear.role in roles)

    @cached_property
    def matrices(self) -> int:
        """Elements of linear modules and experts."""
        return self.linear_elements + self.experts

    @cached_property
    def linear_elements(self) -> int:
        return sum(linear.elements for linear in self.linears)

    @cached_property
    def elements(self) -> int:
        return self.matrices + self.vectors

    @cached_property
    def down(self) -> tuple[Linear, ...]:
        """Linear modules whose results leave the feed-forward block."""
        return self.by_role("down")

    @cached_property
    def readers(self) -> tuple[Linear, ...]:
        """Linear modules that read what enters the feed-forward block."""
        return self.by_role("gate", "up", "gate_up", "shared_gate")

    @cached_property
    def routed(self) -> "Block":
        """The linear modules of routed experts alone; none where the experts are fused."""
        return Block(tuple(linear for linear in self.linears if linear.routed), 0, 0)

    @cached_property
    def unrouted(self) -> "Block":
        """All other linear modules."""
        return Block(tuple(linear for linear in self.linears if not linear.routed), 0, 0)

    @cached_property
    def attention(self) -> tuple[Linear, ...]:
        """Linear modules outside the feed-forward block."""
        return tuple(linear for linear in self.linears if linear not in (*self.down, *self.readers))
