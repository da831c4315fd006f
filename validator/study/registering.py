"""From a data file to its entry in dataset_info.json."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from validator.diagnostic import RecipeError
from validator.job import datasets
from validator.read.tree import parse_data
from validator.samples.form import form
from validator.samples.guess import ENOUGH, Guess, UnknownFormError, guess
from validator.samples.needs import needs
from validator.samples.outcome import judge
from validator.samples.remedy import written
from validator.study import reading
from validator.study.results import Drop
from validator.study.values import UnreadableError
from validator.write import registry

_USUAL = "data"  # LLaMA-Factory's `dataset_dir` where a recipe names none
_LOOKED = 100_000  # rows that are compared with the form of the first
_EXAMPLES = 3


@dataclass(frozen=True)
class Registration:
    """An entry, the registry that holds it, and the keys of a recipe that trains on it. `added` is false where it was
    there already; `drops` are rows of another form among the `rows` that were looked at."""

    path: str
    name: str
    entry: Mapping[str, Any]
    added: bool
    settings: Mapping[str, str]
    rows: int
    drops: list[Drop]
    notes: list[str]


@dataclass(frozen=True)
class Own:
    """Data of the user's own: a file or folder, the name that a recipe may give it, and its form. `notes` are what a
    recipe for such rows should heed beside its keys."""

    path: Path
    name: str
    form: Guess
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.path)

    def entry(self, folder: Path) -> dict[str, Any]:
        """The entry for a registry in this folder."""
        return {"file_name": registry.relative(self.path, folder), **self.form.entry}

    @cached_property
    def rows(self) -> int:
        """How many rows there are; of large files about."""
        counted = ((path, datasets.count(path)) for path in files(self.path))
        return sum(rows.number if rows else sum(1 for _ in reading.rows(path)) for path, rows in counted)


def own(path: Path, name: str | None = None) -> Own:
    """What a file or folder of data holds; its name is that of the file where none is given. Raises RecipeError."""
    with _readable(path):
        suited = described(path)
        notes = tuple(needs(suited, reading.first(files(path), ENOUGH)))
    return Own(path, name or _name(path.stem), suited, notes)


def _name(stem: str) -> str:
    """A name that YAML reads as text, and that no comma parts."""
    name = re.sub(r"[^\w.-]+", "_", stem)
    return name if isinstance(parse_data(name), str) else f"my_{name}"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except UnreadableError as err:
        raise RecipeError(f"`{path}`: row {err.row} {err}" if err.row else f"`{path}` {err}") from None


def files(path: Path) -> list[Path]:
    """The files of a data set: one, or those of a folder. Raises RecipeError where LLaMA-Factory reads them not."""
    if not path.exists():
        raise RecipeError(f"`{path}` does not exist; give a recipe (.yaml) or a data file")
    held = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    if not held:
        raise RecipeError(f"`{path}` is a folder without files")
    wrong = next((file for file in held if file.suffix[1:] not in datasets.suffixes()), None)
    if wrong:
        raise RecipeError(f"`{wrong}` is no data file; LLaMA-Factory reads {', '.join(datasets.suffixes())}")
    if len({datasets.suffixes()[file.suffix[1:]] for file in held}) > 1:
        raise RecipeError(f"`{path}` holds files of more than one type, which LLaMA-Factory does not read together")
    return held


def described(path: Path) -> Guess:
    """The form of a file, or of the files of a folder. Raises RecipeError for one that no entry describes, and
    UnreadableError where there is no row, or not even the first can be read."""
    rows = reading.first(files(path), ENOUGH)
    if not rows:
        raise UnreadableError(0, "holds no row")
    try:
        return guess(rows)
    except UnknownFormError as err:
        said = f"the columns {', '.join(err.columns[:12])} are of no known form"
        raise RecipeError(f"`{path}`: {said}: {err}") from None


def register(path: Path, name: str, folder: Path | None = None) -> Registration:
    """Write the entry for a file or folder of data under this name. `folder` is the recipe's `dataset_dir`; None: that
    of the file if it holds a registry, else `data`. Raises RecipeError, and writes nothing then."""
    if not name.strip() or "," in name or name != name.strip():
        raise RecipeError(f"`{name}` cannot be named in a recipe, where commas part the names of data sets")
    folder = folder or (path.parent if (path.parent / datasets.REGISTRY).exists() else Path(_USUAL))
    mine = own(path, name)
    entry = mine.entry(folder)
    with _readable(path):
        rows, drops = _compared(files(path), mine.form)
    try:
        added = bool(registry.add(folder / datasets.REGISTRY, {name: entry}))
    except RecipeError as err:
        raise RecipeError(f"{err}; `{path}` needs {written(name, entry)}") from None
    settings = {"dataset": name, "dataset_dir": str(folder), "stage": mine.form.stage}
    if os.path.realpath(folder) == os.path.realpath(_USUAL):
        del settings["dataset_dir"]
    return Registration(str(folder / datasets.REGISTRY), name, entry, added, settings, rows, drops, [*mine.notes])


def _compared(held: list[Path], suited: Guess) -> tuple[int, list[Drop]]:
    """How many rows were looked at, and those that the form does not suit."""
    why_not, places, number = judge(form(suited.entry), suited.stage), dict[str, list[str]](), 0
    for path in held:
        for line, row in islice(reading.rows(path), _LOOKED - number):
            number += 1
            if why := why_not(row):
                places.setdefault(why, []).append(f"{path}:{line}")
    return number, [Drop(why, len(where), where[:_EXAMPLES]) for why, where in places.items()]
