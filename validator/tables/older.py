"""What a recipe's releases do otherwise than the newest ones that shows in device memory, by data/older.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from validator.tables import data, releases

_NONE: frozenset[str] = frozenset()


def older(header: Mapping[str, Any]) -> frozenset[str]:
    """Names of the entries that hold for a release which the recipe may run with."""
    if header.get("llamafactory") is None and header.get("transformers") is None:
        return _NONE
    table = data.listing("older")
    return frozenset(name for name in table if _holds(header, **table[name]))


def _holds(header: Mapping[str, Any], until: str, since: str = "", **_: str) -> bool:
    return releases.before(header, until) and not (since and releases.before(header, since))
