"""`diff` for a terminal."""

from __future__ import annotations

import json

from validator import printable
from validator.recipes.compare import Comparison, Need


def text(comparison: Comparison) -> str:
    """The comparison as lines of text."""
    lines = [f"  {key}: {_written(old)} -> {_written(new)}" for key, (old, new) in comparison.changed.items()]
    lines += [f"+ {key}: {_written(value)}" for key, value in comparison.added.items()]
    lines += [f"- {key}: {_written(value)}" for key, value in comparison.removed.items()]
    lines = lines or ["  no setting differs"]
    return printable.lines([*lines, _memory("before", comparison.before), _memory("after", comparison.after)])


def _memory(when: str, need: Need) -> str:
    if need.device_gib is None:
        return f"{when}: memory is not known"
    return f"{when}: {need.device_gib} GiB per device, {need.host_gib} per node, {need.verdict}"


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
