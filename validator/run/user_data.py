"""Data that a user passes to a command in place of a recipe, a file or a folder: a name for them, the dataset_info.json
entry that their rows need, and notes for a recipe that trains on them. JSON, CSV and text files are read here; tables
and packed files are read by `dataset/user_input`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from validator.errors import RecipeError
from validator.recipe import registry_edits, safe_read
from validator.recipe.safe_read import parse_trusted_yaml
from validator.rows.converter import Row
from validator.rows.dataset_attr import MODALITIES
from validator.rows.entry_inference import InferredEntry, UnknownFormError, infer_entry, recipe_notes
from validator.rows.media_columns import media_dir_of_rows
from validator.rows.outcomes import first_fatal_row
from validator.run import dataset_registry, row_counts
from validator.run.row_counts import Rows
from validator.run.settings import RunSettings


@dataclass(frozen=True)
class UserData:
    """A user's own file or folder of data. `name`: the name that a recipe may give the data set. `form`: the
    dataset_info.json entry inferred from the rows. `notes`: advice for a recipe that trains on these rows.
    `count_rows`: counts the rows by reading the files."""

    path: Path
    name: str
    form: InferredEntry
    notes: tuple[str, ...]
    count_rows: Callable[[], Rows]
    media_dir: Path | None = None

    def __str__(self) -> str:
        return str(self.path)

    def entry(self, folder: Path) -> dict[str, Any]:
        """Return the dataset_info.json entry for these data. `folder`: the folder of the dataset_info.json, to which
        the file name is relative."""
        return {"file_name": registry_edits.path_from_registry(self.path, folder), **self.form.entry}

    @property
    def registry(self) -> dataset_registry.Registry:
        """A registry (dataset_info.json) in memory that holds only these data. Its entry has the number of rows if only
        `data` can count them."""
        entry = self.entry(Path())
        if any(row_counts.count_rows(file) is None for file in list_data_files(self.path)):
            entry["num_samples"] = self.rows
        return dataset_registry.Registry(Path(), {self.name: entry})

    def require_media(self, run: RunSettings) -> None:
        """Raise RecipeError if the rows hold images, videos or audio and the template of the run takes none
        (PTH121)."""
        media = (
            [part for part in MODALITIES if part in self.form.entry.get("columns", ())]
            if run.task.stage != "pt"
            else []
        )
        accepted = run.template.get("media", ()) if run.template else MODALITIES.values()
        if refused := [part for part in media if MODALITIES[part] not in accepted]:
            what = " and ".join(refused)
            raise RecipeError(f"`{self}` holds {what}, and {run.model_name} takes none; choose a model for {what}")

    @cached_property
    def counted(self) -> Rows:
        """The rows of all files, and whether their number is exact."""
        return self.count_rows()

    @property
    def rows(self) -> int:
        """Number of rows; an estimate for very large files."""
        return self.counted.number


def read_user_data(path: Path) -> UserData | None:
    """Return the description of the data in a file or folder, made from the first rows. None if the standard library
    cannot read the data (a table such as Parquet, or a compressed file). Raises RecipeError if the files cannot be
    read, or LLaMA-Factory cannot train on their rows."""
    counted = [row_counts.count_rows(file) for file in list_data_files(path)]
    if any(each is None or (each.number and not each.head) for each in counted):
        return None
    rows = row_counts.sum_rows(filter(None, counted))
    if rows.problem or not rows.head:
        raise RecipeError(rows.problem or f"`{path}` holds no row")
    return describe_user_data(path, None, rows.head, lambda: rows)


def describe_user_data(path: Path, name: str | None, rows: Sequence[Row], count_rows: Callable[[], Rows]) -> UserData:
    """Return the description of a file or folder of data. `name`: the data set's name; None to make a name of the
    file's name. `rows`: the first rows. `count_rows`: counts the rows. Raises RecipeError if no
    dataset_info.json entry fits the rows, or if LLaMA-Factory would stop at one of them."""
    inferred = infer_user_entry(path, rows)
    if why := first_fatal_row(inferred.attr, inferred.stage, rows):
        raise RecipeError(f"`{path}`: {why}; write all rows in one form, or take it out")
    notes, media_dir = tuple(recipe_notes(inferred, rows)), media_dir_of_rows(inferred.attr, rows, path)
    return UserData(path, name or _dataset_name(path.stem), inferred, notes, count_rows, media_dir)


def infer_user_entry(path: Path, rows: Sequence[Row]) -> InferredEntry:
    """Return the dataset_info.json entry that fits the rows of a user's data. `path`: the path of the data, for
    messages. Raises RecipeError if no entry fits."""
    try:
        return infer_entry(rows)
    except UnknownFormError as err:
        columns = f"the columns {', '.join(err.columns[:12])} are of no known form"
        raise RecipeError(f"`{path}`: {columns}: {err}") from None


def _dataset_name(stem: str) -> str:
    """Return a name for a data set, made of the name of its file without suffix. A recipe can use the name as it is:
    YAML reads it as text, and it contains no comma."""
    name = re.sub(r"[^\w.-]+", "_", stem)
    return name if isinstance(parse_trusted_yaml(name), str) else f"my_{name}"


def list_data_files(path: Path) -> list[Path]:
    """Return the files of a data set: the file itself, or the files of the folder. Raises RecipeError if nothing exists
    at the path, or if LLaMA-Factory cannot load the files as one data set."""
    if safe_read.path_kind(path) is None:
        raise RecipeError(f"`{path}` does not exist; give a recipe (.yaml) or a data file")
    folder = safe_read.path_kind(path) == "folder"
    files = (
        sorted(file for file in safe_read.list_folder(path) if safe_read.path_kind(file) == "file")
        if folder
        else [path]
    )
    if not files:
        raise RecipeError(f"`{path}` is a folder without files")
    if fault := dataset_registry.file_type_fault(path, files):
        raise RecipeError(fault)
    return files
