"""What RECIPE stands for on a command line: a file, or a recipe of the catalogue by its name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from validator.diagnostic import Diagnostic, RecipeError, Severity
from validator.read import disk, override
from validator.read.recipe import Document, load
from validator.recipes import catalogue
from validator.tables.checkout import home
from validator.tables.suggestion import suggest

# Keys whose relative paths a recipe of the catalogue means from the catalogue's home, and what they are by default.
_READ = {"deepspeed": None, "dataset_dir": "data", "model_name_or_path": None}


class Named(NamedTuple):
    """A recipe's file, and overrides: the user's, after those that say where a catalogue recipe's own paths lead."""

    path: str
    overrides: tuple[str, ...]


def named(recipe: str, overrides: Sequence[str] = ()) -> Named:
    """The file that is there, else the recipe of that name; any other path as it is, for the reader to explain.

    Raises RecipeError, with a near name, for a word that is neither."""
    if recipe == "-" or os.access(recipe, os.F_OK):
        return Named(recipe, tuple(overrides))
    name = recipe.removesuffix(".yaml")
    if name not in catalogue.names():
        _refuse(recipe, name)
        return Named(recipe, tuple(overrides))
    file = catalogue.file(name)
    if home() == Path.cwd():
        return Named(str(file.relative_to(home())), tuple(overrides))
    return Named(str(file), (*_from_home(file, overrides), *overrides))


def document(recipe: str) -> Document:
    """The recipe, read. Never raises: whatever is wrong is in `problems`."""
    try:
        path, overrides = named(recipe)
    except RecipeError as err:
        return Document(recipe, problems=[Diagnostic("LOA001", Severity.ERROR, str(err))])
    return override.with_overrides(load(path), overrides)


def _refuse(recipe: str, name: str) -> None:
    near = suggest(name, catalogue.names())
    word = recipe == Path(recipe).name and not Path(recipe).suffix
    if near or word:
        more = near or "; `lmf-recipes list` shows all"
        raise RecipeError(f"`{recipe}` is no file, and no recipe of the catalogue{more}")


def _from_home(file: Path, overrides: Sequence[str]) -> Iterator[str]:
    """Where the recipe's own paths lead. Whoever names other data means them from where they stand."""
    values = load(str(file)).values
    given = {text.partition("=")[0] for text in overrides}
    given |= {"dataset_dir"} if "dataset" in given else set()
    for key, default in _READ.items():
        value = values.get(key, default)
        if key not in given and isinstance(value, str) and disk.kind(home() / value) is not None:
            yield override.assignment(key, str(home() / value))
