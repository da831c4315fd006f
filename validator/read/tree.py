"""Data files: JSON, and YAML in its own types."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from validator.diagnostic import RecipeError
from validator.read import dialect, limits
from validator.read.text import read_text

_MAX_DEPTH = 100
_MAX_DIGITS = 308  # of a whole number that is a float, too
_TOO_DEEP = "is nested too deeply to be read"


def read_yaml(path: str) -> Any:
    """A settings file in YAML. Raises RecipeError without the path, which the message may begin with."""
    text = read_text(path)
    try:
        limits.extent(text)
        return dialect.compose(text, _bounded)[1]
    except ValueError as err:
        raise RecipeError(str(err)) from None


def parse_data(text: str) -> Any:
    """Trusted YAML text of our own data files."""
    return dialect.plain(text)


def read_json(path: str) -> Any:
    """A JSON file. Raises RecipeError naming the line where it is broken."""
    try:
        return parse_json(read_text(path))
    except RecipeError as err:
        raise RecipeError(f"`{path}` {err}") from None


@lru_cache(maxsize=8)
def parse_json(text: str) -> Any:
    """What JSON text holds. Many recipes may ask for it, and changes of one that are tried: it is not to be changed.
    Raises RecipeError, without a subject, naming the line where it is broken."""
    try:
        value = json.loads(text, parse_int=_whole)
    except json.JSONDecodeError as err:
        where = f"line {err.lineno} column {err.colno}"
        raise RecipeError(f"is not valid JSON: {err.msg.lower()} at {where}") from None
    except ValueError:
        raise RecipeError("holds a number of too many digits to be read") from None
    except RecursionError:
        raise RecipeError(_TOO_DEEP) from None
    if deep(value):
        raise RecipeError(_TOO_DEEP)
    return value


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(digits)
    return int(digits)


def deep(value: object, most: int = _MAX_DEPTH) -> bool:
    """Whether lists and objects are nested beyond so many levels, by default deeper than anything that means something,
    and than what walks through it may go."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        level = [each for each in level if isinstance(each, (dict, list))]
        if not level:
            return False
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return True


def _bounded(root: dialect.Node) -> bool:
    """True, as values are made of all nodes, unless aliases expand them too far. Raises MalformedError."""
    limits.expansion(root)
    return True
