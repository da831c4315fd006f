"""The catalogue: list, copy, compare."""
