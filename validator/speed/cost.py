"""What one kind of work costs a device. Seconds."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from typing import NamedTuple

from .terms import Term


class Cost(NamedTuple):
    """Seconds that one term takes in the forward and in the backward pass, without what is computed again."""

    term: Term
    forward: float
    backward: float
