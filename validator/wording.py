"""Numbers, durations and paths as messages show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


def clip(text: str, most: int = 60) -> str:
    """Return the text, shortened to a length that a message can show."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


_MAX_NAMES = 5


def quoted_names(names: Sequence[str]) -> str:
    """Return the names in backquotes, separated by commas. Of many names, only the first ones are listed."""
    ending = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(f"`{clip(name)}`" for name in names[:_MAX_NAMES]) + ending


def plural(count: int, noun: str) -> str:
    """Return the noun for this number: one row, two rows."""
    return noun if count == 1 else f"{noun}s"


def term_in_words(term: str) -> str:
    """Return the name of a term of memory or time as text shows it: `kernel_launches` of JSON is "kernel launches"."""
    return term.replace("_", " ")


def distinguishing_decimals(limit: float | None, *sizes: float) -> int:
    """Return how many decimals tell each of the sizes from their limit; one, if that is enough. A size that is equal to
    the limit, such as the upper end of a band that is cut off there, needs no more."""
    others = [size for size in sizes if size != limit]
    return next((n for n in (1, 2) if limit is None or f"{limit:.{n}f}" not in [f"{s:.{n}f}" for s in others]), 3)


# The least that is told in a unit, its seconds, and its sign.
_DURATION_UNITS = ((172800.0, 86400.0, "days"), (3600.0, 3600.0, "h"), (90.0, 60.0, "min"), (0.0, 1.0, "s"))


def format_duration(seconds: float) -> str:
    """Return a duration such as `5.2 h`."""
    _, size, sign = _duration_unit(seconds)
    return f"{two_digits(seconds / size)} {sign}"


def format_duration_range(low: float, high: float) -> str:
    """Return a range such as `5 to 9 h`, in the unit of its middle. Ends that lie far apart have a unit each."""
    if _duration_unit(low) != _duration_unit(high):
        return f"{format_duration(low)} to {format_duration(high)}"
    _, size, sign = _duration_unit(high)
    return f"{two_digits(low / size)} to {two_digits(high / size)} {sign}"


def format_duration_band(low: float, expected: float, high: float) -> str:
    """Return a band such as `6.3 h (5 to 9 h)`."""
    return f"{format_duration(expected)} ({format_duration_range(low, high)})"


def four_digits(value: float) -> float:
    """Return the number rounded to four significant digits, as JSON shows times and costs."""
    return float(f"{value:.4g}")


def map_floats(value: Value, function: Callable[[float], float]) -> Value:
    """Return a result with the function applied to each float in it: in the fields of dataclasses and named tuples, in
    lists and in the values of mappings."""
    changed: Any = value
    if isinstance(value, float):
        changed = function(value)
    elif is_dataclass(value) and not isinstance(value, type):
        changed = replace(
            value, **{each.name: map_floats(getattr(value, each.name), function) for each in fields(value)}
        )
    elif isinstance(value, dict):
        changed = {key: map_floats(each, function) for key, each in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_make"):
        changed = value._make(map_floats(each, function) for each in value)
    elif isinstance(value, (list, tuple)):
        changed = type(value)(map_floats(each, function) for each in value)
    return cast("Value", changed)


def two_digits(value: float) -> str:
    """Return the number with two significant digits, because a time cannot be predicted more exactly."""
    if value >= 9.95:
        return f"{float(f'{value:.2g}'):,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _duration_unit(seconds: float) -> tuple[float, float, str]:
    return next(unit for unit in _DURATION_UNITS if seconds >= unit[0])


def relative_to_cwd(path: Path) -> Path:
    """Return the path relative to the working directory if it lies below, else the absolute path."""
    absolute, cwd = path.absolute(), Path.cwd()
    return absolute.relative_to(cwd) if absolute.is_relative_to(cwd) else absolute


def shown_value(value: object) -> str:
    """Return a value as YAML writes it: text in quotes, true, false and null. Values longer than 40 characters are
    cut."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
