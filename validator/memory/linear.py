"""Linear modules of a layer, by their shapes."""

# Annotations are not postponed, as workload.py says: each start would pay for it.

from typing import NamedTuple


class Linear(NamedTuple):
    """`number` linear modules of one role and shape in one layer. `routed`: those of experts, which only
    some tokens reach."""

    role: str
    inputs: int
    outputs: int
    number: int = 1
    bias: bool = False
    routed: bool = False

    @property
    def elements(self) -> int:
        return self.number * self.inputs * self.outputs

    @property
    def bias_elements(self) -> int:
        return self.number * self.outputs if self.bias else 0
