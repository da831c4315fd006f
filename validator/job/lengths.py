"""How long samples are, as far as a recipe's header block tells: `lengths: 800`, or `lengths: [800, 3000]`."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from typing import Any, NamedTuple

from validator.job.values import quantity

# Hardly a set of data has no sample of so many tokens; some have none of 1,024 (350 questions with answers, of a public
# run on 6 GB). Beyond it, whether samples reach `cutoff_len` is not known.
ORDINARY = 512


class Lengths(NamedTuple):
    """Tokens of a usual sample, and of the longest; None: not told."""

    typical: int | None = None
    longest: int | None = None


def lengths(value: Any) -> Lengths | None:
    """What the header's `lengths` says: the typical length, or a list of it and the longest; None where it is neither
    of them."""
    given = value if isinstance(value, list) else [value]
    numbers = [int(number) for each in given if (number := quantity(each)) and number >= 1]
    if len(numbers) != len(given) or not 1 <= len(given) <= 2 or numbers != sorted(numbers):
        return None
    return Lengths(*numbers)
