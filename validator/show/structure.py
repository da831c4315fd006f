"""A result as JSON for programs: the fields of its dataclasses are the keys, in their order. A word that Python keeps
for itself has a `_` behind it as a field (`from_`)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from validator import printable
from validator.printable import Exact

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def text(result: DataclassInstance | Sequence[DataclassInstance] | Mapping[str, object]) -> Exact:
    """The structure that `--format json` prints, with an end of line. A number that JSON cannot say (RFC 8259 has
    neither NaN nor Infinity) is null."""
    written = json.dumps(_plain(result), indent=2, ensure_ascii=False, allow_nan=False)
    return Exact(printable.json(written) + "\n")


def _plain(value: object) -> object:
    """The value in the types of JSON; the fields of a dataclass and of a named tuple are keys."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        return {field.name.removesuffix("_"): _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
