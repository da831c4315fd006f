"""Fields of a recipe's header block about its data and its machine, except the releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from validator.run.recipe_arguments import finite_number


class HeaderLengths(NamedTuple):
    """Tokens of a typical sample and of the longest sample; None if not declared."""

    typical: int | None = None
    longest: int | None = None


class Declared(NamedTuple):
    """Fields of the header block. `samples`: the recommended number; `rows`: those of the named data after
    `max_samples`; None if not declared. `overfit`: the run is meant to learn its samples by heart. `packages`: those
    that the run has beside LLaMA-Factory's own."""

    samples: int | None
    rows: int | None
    lengths: HeaderLengths
    overfit: bool
    packages: frozenset[str]


def header_lengths(value: Any) -> HeaderLengths | None:
    """Return what the header's `lengths` says: the typical length, or a list of it and the longest; None if it is
    neither."""
    given = value if isinstance(value, list) else [value]
    numbers = [int(number) for each in given if (number := finite_number(each)) and number >= 1]
    if len(numbers) != len(given) or not 1 <= len(given) <= 2 or numbers != sorted(numbers):
        return None
    return HeaderLengths(*numbers)


def read_declared(header: Mapping[str, Any]) -> Declared:
    """Return the fields of a header block; a value that means nothing counts as not declared."""
    samples, rows = finite_number(header.get("samples")), finite_number(header.get("rows"))
    packages = header.get("packages")
    names = packages if isinstance(packages, list) else str(packages or "").split(",")
    return Declared(
        samples=int(samples) if samples and samples > 0 else None,
        rows=int(rows) if rows and rows > 0 else None,
        lengths=(header_lengths(header["lengths"]) if "lengths" in header else None) or HeaderLengths(),
        overfit=header.get("overfit") is True,
        packages=frozenset(str(name).strip() for name in names) - {""},
    )
