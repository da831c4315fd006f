"""Lengths in tokens: how many sequences packing makes from samples (llamafactory/data/processor/supervised.py), and the
distribution of the lengths in a data set."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from validator.rows.truncation import CUTOFF_STEP


def count_packed_sequences(lengths: Sequence[int], limit: int) -> int:
    """Return the number of sequences of at most `limit` tokens into which packing puts one batch of samples. Each
    sequence is filled with the longest remaining sample that fits, again and again. Samples longer than `limit` are
    dropped."""
    left, filled = sorted(length for length in lengths if length <= limit), 0
    while left:
        room, at = limit, len(left)
        while at:
            room -= left.pop(at - 1)
            at = bisect_right(left, room)
        filled += 1
    return filled


_HISTOGRAM_BARS = 16
_UNCUT_SHARE = 0.995  # share of the samples that the recommended `cutoff_len` leaves whole


@dataclass(frozen=True)
class HistogramBar:
    """Number of rows that have from `from_` to `to` tokens, both included."""

    from_: int
    to: int
    rows: int


def length_quantile(ordered: Sequence[int], share: float) -> int:
    """Return a quantile of the lengths: the given share of the samples is not longer. `ordered` holds the lengths in
    ascending order. The result is 0 without samples."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0


def recommend_cutoff_len(ordered: Sequence[int], positions: int | None) -> int:
    """Return a recommended `cutoff_len`: the smallest multiple of 128 tokens that cuts at most one sample in 200. The
    result does not exceed `positions`, the longest sequence of the model (None: not known). `ordered` holds the lengths
    in ascending order."""
    cutoff_len = -(-length_quantile(ordered, _UNCUT_SHARE) // CUTOFF_STEP) * CUTOFF_STEP
    return min(cutoff_len, positions) if positions else cutoff_len


def length_histogram(ordered: Sequence[int]) -> Sequence[HistogramBar]:
    """Return the histogram of the lengths, which are in ascending order. Bars have equal width up to the 99th
    percentile; one further bar holds all longer samples. The result is empty without samples."""
    if not ordered:
        return ()
    width = max(-(-(length_quantile(ordered, 0.99) - ordered[0] + 1) // _HISTOGRAM_BARS), 1)
    width = -(-width // 8) * 8 if width > 8 else width
    first = ordered[0] // width * width
    edges = list(range(first, first + width * _HISTOGRAM_BARS + 1, width))
    counts_below = [bisect_left(ordered, edge) for edge in edges]
    bars = [HistogramBar(start, start + width - 1, high - low)
            for start, low, high in zip(edges, counts_below, counts_below[1:], strict=False)]  # fmt: skip
    while len(bars) > 1 and not bars[-1].rows:
        bars.pop()
    beyond = len(ordered) - sum(bar.rows for bar in bars)
    if beyond:
        bars.append(HistogramBar(bars[-1].to + 1, ordered[-1], beyond))
    return bars
