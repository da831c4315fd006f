"""Spans of time in the unit that suits them."""

from __future__ import annotations

# The least that is told in a unit, its seconds, and its sign.
_UNITS = ((172800.0, 86400.0, "days"), (3600.0, 3600.0, "h"), (90.0, 60.0, "min"), (0.0, 1.0, "s"))


def lasting(seconds: float) -> str:
    """`5.2 h`"""
    _, size, sign = _unit(seconds)
    return f"{number(seconds / size)} {sign}"


def between(low: float, high: float) -> str:
    """`5 to 9 h`, in the unit of the middle; each with its own where they lie far apart."""
    if _unit(low) != _unit(high):
        return f"{lasting(low)} to {lasting(high)}"
    _, size, sign = _unit(high)
    return f"{number(low / size)} to {number(high / size)} {sign}"


def number(value: float) -> str:
    """Two digits: nobody knows more of a time."""
    if value >= 9.95:
        return f"{float(f'{value:.2g}'):,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _unit(seconds: float) -> tuple[float, float, str]:
    return next(unit for unit in _UNITS if seconds >= unit[0])
