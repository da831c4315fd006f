"""Any result as JSON, as `--format json` prints it: the fields of its dataclasses are the keys, in their order.

A field called like a Python keyword ends in `_` in the dataclass (`from_`) and is written without it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, TypeAlias

from validator import escaping
from validator.escaping import RawText

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

JsonResult: TypeAlias = "DataclassInstance | Sequence[DataclassInstance] | Mapping[str, object]"


def format_json(result: JsonResult) -> RawText:
    """Return a result as JSON text that ends with a newline. NaN and infinity, which JSON lacks (RFC 8259), become
    null."""
    written = json.dumps(_json_value(result), indent=2, ensure_ascii=False, allow_nan=False)
    return RawText(escaping.escape_json(written) + "\n")


def _json_value(value: object) -> object:
    """Return the value in the types of JSON. The fields of a dataclass or named tuple become keys."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        return {field.name.removesuffix("_"): _json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _json_value(inner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _json_value(value._asdict())
    return [_json_value(inner) for inner in value] if isinstance(value, (list, tuple)) else value
