"""Constants of the product, fitted anew to published rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import log
from types import ModuleType
from typing import TypeVar

Value = TypeVar("Value")


def publication(source: str) -> str:
    """What a row's source is published in: variants of its software are one."""
    return source.split(" (")[0].split(",")[0]


@contextmanager
def assigned(values: Mapping[tuple[ModuleType, str], object]) -> Iterator[None]:
    """Other values for names of modules, for as long as the block runs."""
    before = {place: getattr(*place) for place in values}
    for (module, name), value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def loss(ratios: Iterable[tuple[str, float]]) -> float:
    """Mean size of the error, in logarithms, with every publication weighing the same; of each row that and predicted
    over measured."""
    sizes: dict[str, list[float]] = {}
    for source, ratio in ratios:
        sizes.setdefault(source, []).append(abs(log(ratio)))
    return sum(sum(each) / len(each) for each in sizes.values())


def descend(choices: Mapping[str, Sequence[Value]], loss: Callable[[dict[str, Value]], float]) -> dict[str, Value]:
    """The choice of each constant with the least loss, beginning with the first ones: one constant after the other,
    until none gets better, or four times over."""
    values = {name: some[0] for name, some in choices.items()}
    for _ in range(4):
        before = dict(values)
        for name, some in choices.items():
            values[name] = min(some, key=lambda value, name=name: loss({**values, name: value}))  # type: ignore[misc]
        if values == before:
            break
    return values
