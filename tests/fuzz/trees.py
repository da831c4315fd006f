"""Mutation of what a file holds: a value replaced, removed, repeated, nested, renamed, or taken from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from fuzz import odd
from fuzz.odd import Raw

# A container and the key or index of a value in it.
Place = tuple[Any, Any]


class Pool(NamedTuple):
    """What is put into a tree: keys and values that its kind knows, and raw text of its language."""

    keys: Sequence[str]
    values: Sequence[Any]
    raws: Sequence[Raw]


def pool(trees: Sequence[Any], raws: Sequence[Raw], keys: Sequence[str] = ()) -> Pool:
    """All keys and values of sample trees, and further keys."""
    places = [place for tree in trees for place in _places(tree)]
    named = dict.fromkeys((*(key for _, key in places if isinstance(key, str)), *keys))
    return Pool(tuple(named), tuple(held[key] for held, key in places), raws)


def mutated(random: Random, tree: Any, pool: Pool) -> Any:
    """A copy of the tree with a few changes; seldom something else in its place."""
    if random.random() < 0.01:
        return odd.value(random, pool.raws)
    root = [_copied(tree)]
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        random.choice(_CHANGES)(random, root, pool)
    return root[0]


def _copied(tree: Any) -> Any:
    """As copy.deepcopy, for what JSON holds, at a tenth of its time."""
    if type(tree) is dict:
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(value) for value in tree] if type(tree) is list else tree


def _places(tree: Any) -> Iterator[Place]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield tree, key
        yield from _places(value)


def _place(random: Random, root: list[Any]) -> Place:
    places = list(_places(root[0]))
    return random.choice(places) if places else (root, 0)


def _replace(random: Random, root: list[Any], pool: Pool) -> None:
    held, key = _place(random, root)
    held[key] = odd.value(random, pool.raws)


def _take(random: Random, root: list[Any], pool: Pool) -> None:
    held, key = _place(random, root)
    if pool.values:
        held[key] = _copied(random.choice(pool.values))


def _add(random: Random, root: list[Any], pool: Pool) -> None:
    held, _ = _place(random, root)
    value = _copied(random.choice(pool.values)) if pool.values and random.random() < 0.5 else None
    value = odd.value(random, pool.raws) if value is None else value
    if isinstance(held, dict):
        held[random.choice(pool.keys or ("x",))] = value
    else:
        held.append(value) if held is not root else None


def _drop(random: Random, root: list[Any], _pool: Pool) -> None:
    held, key = _place(random, root)
    if held is not root:
        del held[key]


def _rename(random: Random, root: list[Any], pool: Pool) -> None:
    held, key = _place(random, root)
    if isinstance(held, dict):
        other = odd.near(random, key) if random.random() < 0.5 else random.choice(pool.keys or ("x",))
        held[other] = held.pop(key)


def _nest(random: Random, root: list[Any], _pool: Pool) -> None:
    held, key = _place(random, root)
    held[key] = random.choice(([held[key]], {"x": held[key]}, {str(key): held[key]}, [held[key]] * 3))


def _swap(random: Random, root: list[Any], _pool: Pool) -> None:
    (one, first), (other, second) = _place(random, root), _place(random, root)
    one[first], other[second] = _copied(other[second]), _copied(one[first])


def _retype(random: Random, root: list[Any], _pool: Pool) -> None:
    held, key = _place(random, root)
    value = held[key]
    if isinstance(value, (dict, list)):
        held[key] = str(value) if isinstance(value, dict) else {str(n): each for n, each in enumerate(value)}
    elif isinstance(value, bool):
        held[key] = random.choice((str(value), int(value), not value))
    elif isinstance(value, (int, float)):
        held[key] = random.choice((str(value), -value, value * 10, value // 3, [value]))
    else:
        held[key] = random.choice((f"{value} ", f" {value}", f"{value},{value}", [value], random.choice(odd.WORDS)))


def _repeat(random: Random, root: list[Any], _pool: Pool) -> None:
    held, _ = _place(random, root)
    if isinstance(held, list) and held is not root:
        held[:] = (held * random.choice((2, 3, 20)))[:200]


_CHANGES: Sequence[Callable[[Random, list[Any], Pool], None]] = (
    *(_replace, _replace, _replace, _take, _add, _add, _drop, _rename, _nest, _swap, _retype, _retype, _repeat),
)
