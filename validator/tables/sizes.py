"""Sizes that a config.json gives."""

from validator.diagnostic import RecipeError

# No size of a model comes near it; products of greater ones leave what a float can hold.
_LARGEST = 10**9


def checked(name: str, value: object) -> int:
    """A size by its name in config.json. Raises RecipeError for what is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise RecipeError(f"config.json: `{name}` is {value!r}, not a positive whole number")
    if value > _LARGEST:
        raise RecipeError(f"config.json: `{name}` is more than {_LARGEST}")
    return value
