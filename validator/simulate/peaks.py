"""What a tracker's log says: the peak, what lived then, and the peak of every part of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from validator.simulate.answer import STATES
from validator.simulate.caching import CachingAllocator
from validator.simulate.tracker import Birth, Tracker

Categories = dict[str, int]
Part = tuple[str, str]


class Peak(NamedTuple):
    """Bytes, the birth that reached them, and all births that were alive then."""

    size: int
    last: Birth
    alive: list[Birth]


class PartPeak(NamedTuple):
    """Bytes by category at the moment when a part of a step holds most, the operator that reached it, and the most
    bytes that come and go at any time of the part."""

    size: int
    categories: Categories
    operator: str
    passing: int


def _events(tracker: Tracker) -> Iterator[tuple[int, Birth, int]]:
    """(number of the birth, the birth, bytes that come or go)"""
    for event in tracker.log:
        birth = tracker.births[abs(event) - 1]
        yield abs(event) - 1, birth, birth.size if event > 0 else -birth.size


def peak(tracker: Tracker) -> Peak:
    """The largest moment of all."""
    now = best = place = 0
    for position, (_, _, change) in enumerate(_events(tracker)):
        now += change
        if now > best:
            best, place = now, position
    alive: set[int] = set()
    for event in tracker.log[: place + 1]:
        alive ^= {abs(event) - 1}
    last = tracker.births[abs(tracker.log[place]) - 1]
    return Peak(best, last, [tracker.births[number] for number in alive])


def by_part(tracker: Tracker) -> dict[Part, PartPeak]:
    """The peak of every (phase, segment)."""
    now = passing = 0
    categories, peaks = Categories(), dict[Part, PartPeak]()
    for _, birth, change in _events(tracker):
        now += change
        passing += 0 if birth.category in STATES else change
        categories[birth.category] = categories.get(birth.category, 0) + change
        if change > 0:
            part = (birth.phase, birth.segment)
            old = peaks.get(part) or PartPeak(0, {}, "", 0)
            best = PartPeak(now, dict(categories), birth.operator, 0) if now > old.size else old
            peaks[part] = best._replace(passing=max(old.passing, passing))
    return peaks


def reserved(tracker: Tracker) -> int:
    """Bytes that CUDA's caching allocator takes from the device for this log."""
    allocator, addresses = CachingAllocator(), dict[int, int]()
    for number, birth, change in _events(tracker):
        if change > 0:
            addresses[number] = allocator.allocate(max(512, birth.size))
        else:
            allocator.release(addresses.pop(number))
    return allocator.reserved
