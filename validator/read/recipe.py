"""A recipe that a command can go on with."""

from __future__ import annotations

from collections.abc import Sequence

from validator.diagnostic import RecipeError, Severity
from validator.read import loader
from validator.read.loader import Document


def recipe(path: str, overrides: Sequence[str] = ()) -> Document:
    """The recipe after `KEY=VALUE` overrides. Raises RecipeError where it cannot be read, or holds no key."""
    if path.endswith(".json"):
        raise RecipeError(f"`{path}` is a JSON file; give the recipe (.yaml) that uses it")
    document = readable(path)
    if not document.values:
        raise RecipeError(f"{path}:1:1: holds no key; a recipe needs at least a model [LOA006]")
    return loader.with_overrides(document, overrides)


def readable(path: str) -> Document:
    """The file without errors of loading. Raises RecipeError with the first one."""
    document = loader.load(path)
    for problem in document.problems:
        if problem.severity is Severity.ERROR:
            raise RecipeError(f"{path}:{problem.line}:{problem.column}: {problem.message} [{problem.code}]")
    return document
