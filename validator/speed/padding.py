"""How long batches become: they are padded to the longest of their samples, and devices wait for the longest batch."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

from collections.abc import Sequence
from math import exp, log, sqrt

# Middles of sixteen equally likely parts of the normal distribution.
_NORMAL = (-1.863, -1.318, -1.010, -0.776, -0.579, -0.402, -0.237, -0.078,
           0.078, 0.237, 0.402, 0.579, 0.776, 1.010, 1.318, 1.863)  # fmt: skip
# Standard deviation of the logarithm of lengths: of InstructGPT's prompts it is about 0.8, as they scatter by as much
# as their mean (arXiv 2203.02155, appendix A), and answers vary less than prompts. The longest that is told is taken
# for one in a hundred, 2.3 deviations from the middle.
_USUAL, _MOST, _FAR = 0.7, 1.0, 2.3


def spread(typical: float, longest: float, told: bool = True) -> tuple[float, ...]:
    """Lengths in tokens of equally likely samples whose mean is `typical`, none above `longest`; `told`: the longest
    sample has that length, and is not only cut to it. Lengths of texts are log-normal, about."""
    if typical >= longest:
        return (longest,)
    sigma = min(log(longest / typical) / _FAR, _MOST) if told else _USUAL
    return tuple(min(each, longest) for each in scattered(typical, sigma))


def scattered(typical: float, sigma: float) -> tuple[float, ...]:
    """Lengths in tokens of equally likely samples whose mean is `typical` and whose logarithms scatter by `sigma`."""
    lengths = [exp(sigma * each) for each in _NORMAL]
    scale = typical * len(lengths) / sum(lengths)
    return tuple(scale * each for each in lengths)


def longest_of(lengths: Sequence[float], count: float) -> float:
    """Expected longest of `count` samples drawn at random from equally likely ones."""
    ordered, most = sorted(lengths), len(lengths)
    shares: list[float] = [(at / most) ** count for at in range(most + 1)]
    return sum(length * (shares[at + 1] - shares[at]) for at, length in enumerate(ordered))


def waited_for(lengths: Sequence[float], micro_batch: int, devices: int, waits: int) -> float:
    """Tokens per sequence of the batches that a step takes as long as: every device has batches of its own, and waits
    for the slowest once in `waits` batches, over which their lengths even out."""
    own, slowest = longest_of(lengths, micro_batch), longest_of(lengths, micro_batch * devices)
    return own + (slowest - own) / sqrt(waits)
