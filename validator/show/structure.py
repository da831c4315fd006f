"""A result as JSON for programs: the fields of its dataclasses are the keys, in their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def text(result: DataclassInstance | Sequence[DataclassInstance]) -> str:
    """The structure that `--format json` prints, with an end of line."""
    rows = asdict(result) if is_dataclass(result) else [asdict(row) for row in result]
    return json.dumps(rows, indent=2) + "\n"
