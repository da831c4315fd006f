"""Which rows are trained on, and in which order: samples drawn, sets mixed, rows held back for evaluation.

The draws are those of LLaMA-Factory with the datasets library (data/loader.py, data/data_utils.py): the same generators
of numpy with the same seed.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from validator.diagnostic import RecipeError, plural
from validator.tables import releases

_SLICE = re.compile(r"train(?:\[(-?\d+)?(%)?:(-?\d+)?(%)?\])?")


def part(split: str, count: int) -> range:
    """Rows of a split such as `train[:20%]`. Raises RecipeError for one that is not understood."""
    bounds = _SLICE.fullmatch(split)
    if bounds is None:
        raise RecipeError(f"the split `{split}` is not understood")
    first, last = (_bound(bounds[i], bounds[i + 1], count) for i in (1, 3))
    return range(0 if first is None else first, count if last is None else last)


def _bound(number: str | None, percent: str | None, count: int) -> int | None:
    if number is None:
        return None
    value = round(count * int(number) / 100) if percent else int(number)
    return min(max(value + count if value < 0 else value, 0), count)


def drawn(counts: Sequence[tuple[range, int | None]], limit: int | None, seed: int) -> list[Any]:
    """For each set (its rows, `num_samples`) the indices that are left after `num_samples` and `max_samples`."""
    generator: Any = None
    left: list[Any] = []
    for rows, wanted in counts:
        chosen: Any = rows
        if wanted is not None:
            generator = generator or _numpy().random.RandomState(seed)
            chosen = _sampled(rows, wanted, generator)
        left.append(chosen[: max(limit, 0)] if limit is not None else chosen)
    return left


def _sampled(rows: range, wanted: int, generator: Any) -> Any:
    first = generator.permutation(len(rows))[:wanted]
    more = wanted - len(first)
    if more > 0:
        first = _numpy().concatenate((first, generator.choice(len(rows), more)))
    return first + rows.start


def mixed(parts: Sequence[Any], strategy: str, weights: Sequence[float] | None, seed: int) -> Any:
    """The rows of all sets in the order of training. Raises RecipeError for a strategy that the run refuses."""
    if len(parts) == 1:
        return parts[0]
    if strategy == "concat":
        return array("q", chain.from_iterable(parts))
    if strategy not in ("interleave_under", "interleave_over"):
        library, factory = releases.series(releases.seen("datasets")), releases.seen("llamafactory")
        raise RecipeError(
            f"`mix_strategy: {strategy}` is refused by datasets {library}, which LLaMA-Factory {factory} needs"
        )
    sizes = [len(part) for part in parts]
    over = strategy == "interleave_over"
    if weights is not None:
        return array("q", (int(parts[i][at]) for i, at in _picked(sizes, weights, over, seed)))
    rounds = max(sizes) if over else min(sizes)
    return array("q", (int(part[at % len(part)]) for at in range(rounds) for part in parts))


def _picked(sizes: Sequence[int], weights: Sequence[float], over: bool, seed: int) -> list[tuple[int, int]]:
    generator = _numpy().random.default_rng(seed)
    picked: list[tuple[int, int]] = []
    position, done = [0] * len(sizes), [False] * len(sizes)
    while True:
        for i in map(int, generator.choice(len(sizes), size=1000, p=weights)):
            if all(done) if over else any(done):
                return picked
            picked.append((i, position[i]))
            position[i] += 1
            if position[i] >= sizes[i]:
                done[i], position[i] = True, 0


def held_back(count: int, size: float, seed: int) -> tuple[Any, Any]:
    """Positions trained on and positions evaluated on, for `val_size` as a share or a number. Raises RecipeError where
    nothing is left to train on."""
    if size <= 1e-6:
        return range(count), range(0)
    if not size < max(count, 1):  # neither is .nan
        raise RecipeError(f"`val_size: {size:g}` of {count:,} {plural(count, 'row')} leaves none to train on")
    evaluated = int(size) if size > 1 or isinstance(size, int) else math.ceil(size * count)
    shuffled = _numpy().random.default_rng(seed).permutation(count)
    return shuffled[evaluated:], shuffled[:evaluated]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise RecipeError("which rows are drawn needs numpy: pip install numpy") from None
    return numpy
