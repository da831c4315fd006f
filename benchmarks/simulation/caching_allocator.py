"""Bytes that CUDA's caching allocator would reserve for a log of allocations (c10/cuda/CUDACachingAllocator.cpp), and
the largest moment of a log."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import NamedTuple

from validator.simulation.tracker import Allocation, Tracker, allocation_events

_SMALL, _SMALL_BUFFER, _LARGE_BUFFER, _LARGE, _ROUND = 1 << 20, 2 << 20, 20 << 20, 10 << 20, 2 << 20
# Segments lie so far apart that no two of them are ever neighbours.
_APART = 1 << 30


@dataclass
class _Block:
    size: int
    before: int | None
    after: int | None
    free: bool
    pool: int


class CachingAllocator:
    """Best fit in two pools; blocks are split, and merged again with free neighbours of their segment."""

    def __init__(self) -> None:
        self.free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])  # sorted (size, address)
        self.blocks: dict[int, _Block] = {}
        self.reserved = 0
        self.next_segment = 1 << 40

    def allocate(self, size: int) -> int:
        """The address of a block of `size` bytes."""
        pool = 0 if size <= _SMALL else 1
        place = bisect.bisect_left(self.free[pool], (size, 0))
        fits = place < len(self.free[pool])
        address = self.free[pool].pop(place)[1] if fits else self._segment(size, pool)
        block = self.blocks[address]
        block.free = False
        left = block.size - size
        if left > _SMALL or (pool == 0 and left >= 512):
            self._split(address, size)
        return address

    def release(self, address: int) -> None:
        """The block is free again, one with its free neighbours."""
        block = self.blocks[address]
        block.free = True
        if block.after is not None and self.blocks[block.after].free:
            self._take(block.after)
            self._merge(address, block.after)
        if block.before is not None and self.blocks[block.before].free:
            address = block.before
            self._take(address)
            self._merge(address, block.before + self.blocks[address].size)
        bisect.insort(self.free[block.pool], (self.blocks[address].size, address))

    def _segment(self, size: int, pool: int) -> int:
        buffer = _SMALL_BUFFER if pool == 0 else _LARGE_BUFFER if size < _LARGE else -(-size // _ROUND) * _ROUND
        address = self.next_segment
        self.next_segment += buffer + _APART
        self.blocks[address] = _Block(buffer, None, None, False, pool)
        self.reserved += buffer
        return address

    def _split(self, address: int, size: int) -> None:
        block = self.blocks[address]
        rest = address + size
        self.blocks[rest] = _Block(block.size - size, address, block.after, True, block.pool)
        if block.after is not None:
            self.blocks[block.after].before = rest
        block.after, block.size = rest, size
        bisect.insort(self.free[block.pool], (self.blocks[rest].size, rest))

    def _take(self, address: int) -> None:
        free = self.free[self.blocks[address].pool]
        free.pop(bisect.bisect_left(free, (self.blocks[address].size, address)))

    def _merge(self, first: int, second: int) -> None:
        gone = self.blocks.pop(second)
        block = self.blocks[first]
        block.size, block.after = block.size + gone.size, gone.after
        if gone.after is not None:
            self.blocks[gone.after].before = first


class LargestMoment(NamedTuple):
    """Bytes, the birth that reached them, and all births that were alive then."""

    size: int
    last: Allocation
    alive: list[Allocation]


def largest_moment(tracker: Tracker) -> LargestMoment:
    """The largest moment of all."""
    now = best = place = 0
    for position, (_, _, change) in enumerate(allocation_events(tracker)):
        now += change
        if now > best:
            best, place = now, position
    alive: set[int] = set()
    for event in tracker.log[: place + 1]:
        alive ^= {abs(event) - 1}
    last = tracker.allocations[abs(tracker.log[place]) - 1]
    return LargestMoment(best, last, [tracker.allocations[number] for number in alive])


def reserved_bytes(tracker: Tracker) -> int:
    """Bytes that CUDA's caching allocator takes from the device for this log."""
    allocator, addresses = CachingAllocator(), dict[int, int]()
    for number, birth, change in allocation_events(tracker):
        if change > 0:
            addresses[number] = allocator.allocate(max(512, birth.size))
        else:
            allocator.release(addresses.pop(number))
    return allocator.reserved
