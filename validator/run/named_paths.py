"""Paths that a recipe names, key by key, and where each path is found on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from validator.knowledge.path_keys import PATH_KEYS, READ_KEYS, PathKey
from validator.recipe.recipe_file import path_override
from validator.run.settings import RunSettings


def named_paths(run: RunSettings, keys: Iterable[PathKey]) -> Iterator[tuple[PathKey, str]]:
    """Yield each path or hub name that the recipe gives to one of `keys`, after its key. Two kinds of values are left
    out: a configuration that stands in the recipe itself (a mapping or JSON text), and the address of a reward model on
    a server."""
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
    """A recipe's key that names inputs of the run, such as files or folders. `words`: the value, split at commas.
    `places`: for each word the path where it is found on this machine; None for a hub name or a missing file."""

    key: PathKey
    words: tuple[str, ...]
    places: tuple[Path | None, ...]

    def pairs(self) -> Iterator[tuple[str, Path | None]]:
        return zip(self.words, self.places, strict=True)


def find_inputs(run: RunSettings, keys: Iterable[PathKey] = READ_KEYS) -> Iterator[InputPath]:
    """Yield the input keys of a run that name at least one path which exists on this machine."""
    for key in keys:
        words = tuple(word for _, word in named_paths(run, [key]))
        find = run.workspace.find_dataset_dir if key.name == "dataset_dir" else run.workspace.find
        places = tuple(place[0] if (place := find(word)) else None for word in words)
        if any(places):
            yield InputPath(key, words, places)


def outputs(run: RunSettings) -> Iterator[tuple[PathKey, str]]:
    """Yield each path that a run may write to, with its key."""
    return named_paths(run, [key for key in PATH_KEYS if key.access != "read"])


def path_overrides(run: RunSettings) -> tuple[str, ...]:
    """Return an override (`key=value`) for each key that names an input of the run, if the input is found beside the
    recipe but not from the working directory. The override gives a path that is valid from the working directory."""
    return tuple(
        _override_of_input(each, unspaced_path)
        for each in find_inputs(run)
        if any(place and place.absolute() != Path(word).absolute() for word, place in each.pairs())
    )


def absolute_path_overrides(run: RunSettings, form: Callable[[Path], Path]) -> Iterator[str]:
    """Yield an override (`key=value`) for each key with relative paths that the run reads or writes. `form`: turns an
    absolute path into the path to write. Inputs are looked for in the working directory and then beside the recipe;
    outputs are relative to the working directory."""
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
    """Return the path relative to the working directory if only so it has no space; otherwise return it unchanged."""
    relative = os.path.relpath(path)
    return Path(relative) if re.search(r"\s", str(path)) and not re.search(r"\s", relative) else path
