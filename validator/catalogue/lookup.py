"""Find the file that RECIPE on a command line stands for: a path, or the name of a recipe in the catalogue.

The relative paths in a catalogue recipe count from the catalogue's folder, so overrides make them absolute."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from validator.catalogue import bundled_recipes
from validator.errors import RecipeError
from validator.finding import Diagnostic, Severity
from validator.knowledge.path_keys import READ_KEYS
from validator.recipe import recipe_file, safe_read
from validator.recipe.known_folders import catalogue_root
from validator.recipe.recipe_file import Document, load_recipe
from validator.recipe.suggestions import suggest


class LocatedRecipe(NamedTuple):
    """A recipe's file, and overrides: the user's, after those that say where a catalogue recipe's own paths lead."""

    path: str
    overrides: tuple[str, ...]


def locate_recipe(recipe: str, overrides: Sequence[str] = ()) -> LocatedRecipe:
    """Return the file that is there, else the recipe of that name; any other path stays as it is, for the reader to
    explain.

    Raises RecipeError with a hint for a word that is neither."""
    if recipe == "-" or os.access(recipe, os.F_OK):
        return LocatedRecipe(recipe, tuple(overrides))
    name = recipe.removesuffix(".yaml")
    if name not in bundled_recipes.recipe_names():
        word = recipe == Path(recipe).name and not Path(recipe).suffix
        if word or suggest(name, bundled_recipes.recipe_names()):
            hint = bundled_recipes.hint_for_unknown_name(name)
            raise RecipeError(f"`{recipe}` is no file, and no recipe of the catalogue{hint}")
        return LocatedRecipe(recipe, tuple(overrides))
    file = bundled_recipes.recipe_file(name)
    if catalogue_root() == Path.cwd():
        return LocatedRecipe(str(file.relative_to(catalogue_root())), tuple(overrides))
    return LocatedRecipe(str(file), (*_absolute_path_overrides(file, overrides), *overrides))


def open_recipe(recipe: str) -> Document:
    """Return the recipe, read. Never raises: whatever is wrong is in `problems`."""
    try:
        path, overrides = locate_recipe(recipe)
    except RecipeError as err:
        return Document(recipe, problems=[Diagnostic("LOA001", Severity.ERROR, str(err))])
    return recipe_file.with_overrides(load_recipe(path), overrides)


def _absolute_path_overrides(file: Path, overrides: Sequence[str]) -> Iterator[str]:
    """Yield overrides that make the catalogue recipe's relative paths absolute. If the user overrides `dataset`,
    `dataset_dir` is left alone."""
    values = load_recipe(str(file)).values
    given = {text.partition("=")[0] for text in overrides}
    given |= {"dataset_dir"} if "dataset" in given else set()
    for key in READ_KEYS:
        value = values.get(key.name, key.default)
        if key.name not in given and isinstance(value, str) and safe_read.path_kind(catalogue_root() / value):
            yield recipe_file.path_override(key.name, str(catalogue_root() / value))
