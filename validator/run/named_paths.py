"""Paths that a recipe names, key by key, and where each is found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from validator.knowledge.path_keys import PATH_KEYS, READ_KEYS, PathKey
from validator.recipe.recipe_file import path_override
from validator.run.settings import RunSettings


def named_paths(run: RunSettings, keys: Iterable[PathKey]) -> Iterator[tuple[PathKey, str]]:
    """Yield each path or hub name with its key. A configuration in the recipe itself (a mapping or JSON text) and the
    address of a reward model on a server are left out."""
    for key in keys:
        value = run.args.get(key.name)
        if key.comma_list:
            yield from ((key, word) for word in run.args.words(key.name) if word)
        elif isinstance(value, str) and value and not _names_no_path(run, key, value):
            yield key, value


def _names_no_path(run: RunSettings, key: PathKey, value: str) -> bool:
    if key.kind == "file":
        return value.startswith("{")
    return key.name == "reward_model" and run.args.get("reward_model_type") == "api"


class InputPath(NamedTuple):
    """The value of a key that names an input. `places` says where each word is found; None for a name on a hub and for
    a missing file."""

    key: PathKey
    words: tuple[str, ...]
    places: tuple[Path | None, ...]

    def pairs(self) -> Iterator[tuple[str, Path | None]]:
        return zip(self.words, self.places, strict=True)


def find_inputs(run: RunSettings, keys: Iterable[PathKey] = READ_KEYS) -> Iterator[InputPath]:
    """Yield the inputs of a run of which at least one word is found on this machine."""
    for key in keys:
        words = tuple(word for _, word in named_paths(run, [key]))
        places = tuple(place[0] if (place := run.workspace.find(word)) else None for word in words)
        if any(places):
            yield InputPath(key, words, places)


def outputs(run: RunSettings) -> Iterator[tuple[PathKey, str]]:
    """Yield the paths that a run may write to."""
    return named_paths(run, [key for key in PATH_KEYS if key.access != "read"])


def path_overrides(run: RunSettings) -> tuple[str, ...]:
    """Return overrides that lead from the working directory to files that the recipe finds beside itself."""
    return tuple(
        _override_of_input(each, unspaced_path)
        for each in find_inputs(run)
        if any(place and place.absolute() != Path(word).absolute() for word, place in each.pairs())
    )


def absolute_path_overrides(run: RunSettings, form: Callable[[Path], Path]) -> Iterator[str]:
    """Yield overrides that name what the recipe reads and writes in this form of its absolute paths. What is read is
    looked for beside the recipe too; what is written goes where the user stands."""
    for each in find_inputs(run):
        if not all(Path(word).is_absolute() for word in each.words):
            yield _override_of_input(each, form)
    for key, path in outputs(run):
        if not path.startswith(("/", "~")):
            yield path_override(key.name, str(form(Path(path).absolute())))


def _override_of_input(path_input: InputPath, form: Callable[[Path], Path]) -> str:
    words = (str(form(place.absolute())) if place else word for word, place in path_input.pairs())
    return path_override(path_input.key.name, ",".join(words))


def unspaced_path(path: Path) -> Path:
    """Return the path from the working directory, if only that is free of spaces."""
    cwd = Path.cwd()
    return path.relative_to(cwd) if re.search(r"\s", str(cwd)) and path.is_relative_to(cwd) else path
