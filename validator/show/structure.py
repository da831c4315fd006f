"""A result as JSON for programs: the fields of its dataclasses are the keys, in their order. A word that Python keeps
for itself has a `_` behind it as a field (`from_`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def text(result: DataclassInstance | Sequence[DataclassInstance]) -> str:
    """The structure that `--format json` prints, with an end of line."""
    whole = _keys(result) if is_dataclass(result) else [_keys(row) for row in result]
    return json.dumps(whole, indent=2) + "\n"


def _keys(result: DataclassInstance) -> dict[str, object]:
    return asdict(result, dict_factory=lambda fields: {name.removesuffix("_"): value for name, value in fields})
