"""What LLaMA-Factory's tables say of an argument, for the releases that a recipe is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.tables import data, releases

Entry = Mapping[str, Any]


def entry(key: str, pairs: list[releases.Pair]) -> Entry | None:
    """What the table says of a key for these releases: of several, the oldest, as what newer ones add does not help
    there. None where one of them does not have it."""
    known = data.table("arguments")["arguments"].get(key)
    if known is None or not all(releases.name(pair) in known.get("in", [releases.name(pair)]) for pair in pairs):
        return None
    change = data.table("arguments")["changes"].get(releases.name(pairs[-1]), {}).get(key)
    return {**known, **change} if change else known
