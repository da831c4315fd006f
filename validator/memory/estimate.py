"""The result of a prediction: bytes by term, and the band around them."""

# Annotations are not postponed, as workload.py says: each start would pay for it.

from collections.abc import Mapping
from typing import NamedTuple

from .terms import Term

GIB = float(1 << 30)


class Estimate(NamedTuple):
    """All bytes. `terms` sum to `allocated`; `low` to `high` is the 90 % band of what the system's own tool shows;
    `gaps` name what makes it wide: "few measurements of ..."."""

    terms: Mapping[Term, float]
    low: float
    expected: float
    high: float
    moment: str = ""
    gaps: tuple[str, ...] = ()

    @property
    def allocated(self) -> float:
        return sum(self.terms.values())
