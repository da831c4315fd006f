"""Which values DeepSpeed's pydantic models take. They are lenient: "1e8" is a number, "yes" is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TRUE_WORDS = {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "1", "0"}
_SPOKEN = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list",
           "dict": "an object"}  # fmt: skip


def problem(value: Any, fact: Mapping[str, Any]) -> str | None:
    """Why pydantic refuses a value; None where it takes it. Lenient as DeepSpeed's models are."""
    if value == "auto" or "type" not in fact or (value is None and fact.get("optional")):
        return None
    kinds = fact["type"].split("|")
    if not any(_fits(value, kind) for kind in kinds):
        return f"not {' or '.join(_SPOKEN.get(kind, kind) for kind in kinds)}"
    if "choices" in fact and _number(value) not in fact["choices"]:
        return f"not one of {', '.join(str(choice) for choice in fact['choices'])}"
    low, high = fact.get("minimum"), fact.get("maximum")
    number = _number(value)
    if isinstance(number, (int, float)) and (
        (low is not None and number < low) or (high is not None and number > high)
    ):
        return f"not {f'between {low} and {high}' if high is not None else f'at least {low}'}"
    return None


def _fits(value: Any, kind: str) -> bool:
    number = _number(value)
    match kind:
        case "bool":
            return number in (0, 1) or str(value).lower() in _TRUE_WORDS
        case "int":
            return isinstance(number, int) or (isinstance(value, float) and value.is_integer())
        case "float":
            return isinstance(number, (int, float))
        case "str":
            return isinstance(value, str)
        case "list":
            return isinstance(value, list)
        case "dict":
            return isinstance(value, Mapping)
    return True


def _number(value: Any) -> Any:
    """Text as the number pydantic reads in it; anything else as it is. An integer takes no exponent."""
    if not isinstance(value, str):
        return value
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return value


def spoken(value: Any) -> str:
    """The value as JSON writes it, in the words of a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"`{value}`" if isinstance(value, str) else str(value)
