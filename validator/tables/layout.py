"""Checkpoints in the layout of their own repository, which LLaMA-Factory does not load: `own_layout` of
data/composites.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from validator.tables.data import listing


def instead(name: str, classes: Sequence[str] | None) -> str | None:
    """What to take in place of such a checkpoint, in words; None for any other. It is told by the classes that its
    config.json names, where that is at hand, else by its name on the hub."""
    table = listing("composites")
    for own in (table[kind]["own_layout"] for kind in table.mention("own_layout:")):
        if own["class"] in classes if classes is not None else _named(name, own["names"]):
            return _converted(name, own)
    return None


def _named(name: str, pattern: str) -> bool:
    return bool(re.fullmatch(pattern, name, re.IGNORECASE)) and not name.lower().endswith("-hf")


def _converted(name: str, own: Mapping[str, Any]) -> str:
    for pattern, published in own["converted"]:
        if match := re.fullmatch(pattern, name, re.IGNORECASE):
            return f"`{match.expand(published)}`"
    return str(own["instead"])
