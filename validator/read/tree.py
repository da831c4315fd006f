"""Data files: JSON, and YAML in its own types."""

from __future__ import annotations

import json
from typing import Any

from validator.diagnostic import RecipeError
from validator.read import dialect
from validator.read.text import read_text


def read_yaml(path: str) -> Any:
    """A data file in YAML. Raises RecipeError where it is unreadable."""
    try:
        return dialect.plain(read_text(path))
    except dialect.MalformedError as err:
        raise RecipeError(f"{path} is not valid YAML: {err}") from None


def parse_data(text: str) -> Any:
    """Trusted YAML text of our own data files."""
    return dialect.plain(text)


def read_json(path: str) -> Any:
    """A JSON file. Raises RecipeError naming the line where it is broken."""
    try:
        return json.loads(read_text(path))
    except RecipeError as err:
        raise RecipeError(f"`{path}` {err}") from None
    except json.JSONDecodeError as err:
        where = f"line {err.lineno} column {err.colno}"
        raise RecipeError(f"`{path}` is not valid JSON: {err.msg.lower()} at {where}") from None
    except (RecursionError, ValueError) as err:
        what = "is nested too deeply" if isinstance(err, RecursionError) else "holds a number of too many digits"
        raise RecipeError(f"`{path}` {what} to be read") from None
