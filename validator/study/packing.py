"""How many sequences packing makes of samples (data/processor/supervised.py and pretrain.py)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence


def batches(count: int, size: int, processes: int) -> Iterator[range]:
    """The samples that are packed together: batches of each process's share of the data."""
    each, more = divmod(count, max(processes, 1))
    start = 0
    for process in range(max(processes, 1)):
        end = start + each + (process < more)
        yield from (range(at, min(at + size, end)) for at in range(start, end, size))
        start = end


def packed(lengths: Sequence[int], limit: int) -> int:
    """Sequences of `limit` tokens that one batch of samples fills: the longest that fits goes first."""
    left, filled = sorted(length for length in lengths if length <= limit), 0
    while left:
        room, at = limit, len(left)
        while at:
            room -= left.pop(at - 1)
            at = bisect_right(left, room)
        filled += 1
    return filled


def blocks(lengths: Sequence[int], limit: int) -> int:
    """Blocks of `limit` tokens of one batch of texts; what is left at its end is dropped."""
    return sum(lengths) // limit
