"""Definite remedies: edits of a recipe that `check --fix` can make."""

from __future__ import annotations

from validator.diagnostic import Edit, Fix


def rename(key: str, to: str, safe: bool = True, value: str | bool | None = None) -> Fix:
    """Another name for a key, whose value stays where none is given."""
    name = Edit("rename", key, to)
    return Fix((name,) if value is None else (name, Edit("set", key, value)), safe)


def put(key: str, value: str | float | bool | tuple[str, ...], safe: bool = True) -> Fix:
    """Another value for a key."""
    return Fix((Edit("set", key, value),), safe)


def drop(*keys: str, safe: bool = True) -> Fix:
    """The recipe without these keys."""
    return Fix(tuple(Edit("remove", key) for key in keys), safe)
