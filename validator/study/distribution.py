"""How long the samples are, and what that means for `cutoff_len`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

_BARS = 16
# A length beyond which no more than one sample in 200 is cut.
_UNCUT = 0.995
_STEP = 128  # tokens; recommended lengths are multiples of it


@dataclass(frozen=True)
class Bar:
    """So many rows of `from_` to `to` tokens, both included."""

    from_: int
    to: int
    rows: int


@dataclass(frozen=True)
class Distribution:
    """Tokens of a sample; 95 and 99 of 100 samples have no more than p95 and p99."""

    mean: int = 0
    median: int = 0
    p95: int = 0
    p99: int = 0
    longest: int = 0
    histogram: tuple[Bar, ...] = ()


def distribution(ordered: Sequence[int]) -> Distribution:
    """Of lengths in ascending order, in tokens, before `cutoff_len`."""
    if not ordered:
        return Distribution()
    mean = round(sum(ordered) / len(ordered))
    return Distribution(
        mean, at(ordered, 0.5), at(ordered, 0.95), at(ordered, 0.99), ordered[-1], tuple(_histogram(ordered))
    )


def at(ordered: Sequence[int], share: float) -> int:
    """The length that this share of the samples does not exceed."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def recommended(ordered: Sequence[int], positions: int | None) -> int:
    """The smallest `cutoff_len` in steps of 128 that cuts at most one sample in 200, within the model's positions."""
    wanted = -(-at(ordered, _UNCUT) // _STEP) * _STEP
    return min(wanted, positions) if positions else wanted


def _histogram(ordered: Sequence[int]) -> list[Bar]:
    """Bars of equal width up to the 99th percentile; the last one holds all beyond it."""
    width = max(-(-(at(ordered, 0.99) - ordered[0] + 1) // _BARS), 1)
    width = -(-width // 8) * 8 if width > 8 else width
    first = ordered[0] // width * width
    edges = list(range(first, first + width * _BARS + 1, width))
    below = [bisect_left(ordered, edge) for edge in edges]
    bars = [Bar(start, start + width - 1, high - low)
            for start, low, high in zip(edges, below, below[1:], strict=False)]  # fmt: skip
    while len(bars) > 1 and not bars[-1].rows:
        bars.pop()
    beyond = len(ordered) - sum(bar.rows for bar in bars)
    if beyond:
        bars.append(Bar(bars[-1].to + 1, ordered[-1], beyond))
    return bars
