"""A data file or folder of the user's own: its files, its name and the form of its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from validator.diagnostic import RecipeError
from validator.job import datasets
from validator.job.job import Job
from validator.read import disk
from validator.read.tree import parse_data
from validator.samples.guess import ENOUGH, Guess, UnknownFormError, guess
from validator.samples.media import KINDS
from validator.samples.needs import needs
from validator.samples.outcome import stopping
from validator.study import reading
from validator.study.values import UnreadableError
from validator.write import registry


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

    @property
    def registry(self) -> datasets.Registry:
        """One that holds nothing else."""
        return datasets.Registry(Path(), {self.name: self.entry(Path())})

    def require_media(self, job: Job) -> None:
        """Raises RecipeError where the rows hold images, films or sound, and the job's template takes none (PTH121)."""
        held = [part for part in KINDS if part in self.form.entry.get("columns", ())] if job.stage != "pt" else []
        taken = job.template.get("media", ()) if job.template else KINDS.values()
        if refused := [part for part in held if KINDS[part] not in taken]:
            what = " and ".join(refused)
            raise RecipeError(f"`{self}` holds {what}, and {job.model_name} takes none; choose a model for {what}")

    @cached_property
    def rows(self) -> int:
        """How many rows there are; of large files about."""
        counted = ((path, datasets.count(path)) for path in files(self.path))
        with readable(self.path):
            return sum(rows.number if rows else reading.count(path) for path, rows in counted)


def own(path: Path, name: str | None = None) -> Own:
    """What a file or folder of data holds; its name is that of the file where none is given. Raises RecipeError."""
    with readable(path):
        rows = _first(path)
    suited = _suited(path, rows)
    if why := stopping(suited.entry, suited.stage, rows):
        raise RecipeError(f"`{path}`: {why}; write all rows in one form, or take it out")
    return Own(path, name or _name(path.stem), suited, tuple(needs(suited, rows)))


def _name(stem: str) -> str:
    """A name that YAML reads as text, and that no comma parts."""
    name = re.sub(r"[^\w.-]+", "_", stem)
    return name if isinstance(parse_data(name), str) else f"my_{name}"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns rows that cannot be read into a RecipeError that names the file."""
    try:
        yield
    except UnreadableError as err:
        raise RecipeError(f"`{path}`: row {err.row} {err}" if err.row else f"`{path}` {err}") from None


def files(path: Path) -> list[Path]:
    """The files of a data set: one, or those of a folder. Raises RecipeError where LLaMA-Factory reads them not."""
    if disk.kind(path) is None:
        raise RecipeError(f"`{path}` does not exist; give a recipe (.yaml) or a data file")
    folder = disk.kind(path) == "folder"
    held = sorted(file for file in disk.inside(path) if disk.kind(file) == "file") if folder else [path]
    if not held:
        raise RecipeError(f"`{path}` is a folder without files")
    wrong = next((file for file in held if file.suffix[1:] not in datasets.suffixes()), None)
    if wrong:
        read = ", ".join(datasets.suffixes())
        raise RecipeError(f"`{wrong}` is no data file; LLaMA-Factory reads {read}{_instead(wrong)}")
    if len({datasets.suffixes()[file.suffix[1:]] for file in held}) > 1:
        raise RecipeError(f"`{path}` holds files of more than one type, which LLaMA-Factory does not read together")
    return held


def _instead(path: Path) -> str:
    """How a file of another suffix is made one that is read."""
    if path.suffix.lower()[1:] in datasets.suffixes():
        return f"; rename it to `{path.with_suffix(path.suffix.lower())}`"
    return "; save it as csv" if path.suffix.lower() in (".tsv", ".tab", ".xlsx", ".xls") else ""


def described(path: Path) -> Guess:
    """The form of a file, or of the files of a folder. Raises RecipeError for one that no entry describes, and
    UnreadableError where there is no row, or not even the first can be read."""
    return _suited(path, _first(path))


def _first(path: Path) -> list[dict[str, Any]]:
    rows = reading.first(files(path), ENOUGH)
    if not rows:
        raise UnreadableError(0, "holds no row")
    return rows


def _suited(path: Path, rows: list[dict[str, Any]]) -> Guess:
    try:
        return guess(rows)
    except UnknownFormError as err:
        said = f"the columns {', '.join(err.columns[:12])} are of no known form"
        raise RecipeError(f"`{path}`: {said}: {err}") from None
