"""Data that a user passes to a command in place of a recipe, a file or a folder: a name for them, the dataset_info.json
entry that their rows need, and notes for a recipe that trains on them. JSON, CSV and text files are read here; tables
and packed files are read by `dataset/user_input`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.knowledge.file_kinds import RECIPE, kind_of_file
from validator.recipe import safe_read
from validator.recipe.recipe_file import RECIPE_SUFFIXES
from validator.recipe.safe_read import parse_trusted_yaml
from validator.rows import registry_edits
from validator.rows.converter import Row
from validator.rows.csv_rows import separator_fault
from validator.rows.dataset_attr import MODALITIES, entry_faults
from validator.rows.entry_inference import InferredEntry, UnknownFormError, infer_entry, recipe_notes
from validator.rows.media_columns import media_dir_of_rows
from validator.rows.named_columns import entry_of_columns, form_of_entry, format_columns
from validator.rows.outcomes import count_trained, first_fatal_row
from validator.run import dataset_registry, row_counts
from validator.run.row_counts import Rows
from validator.run.settings import RunSettings

DEFAULT_DATASET_DIR = Path("data")  # LLaMA-Factory's `dataset_dir` where a recipe names none
NO_COLUMNS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class UserData:
    """A user's own file or folder of data. `name`: the name that a recipe may give the data set. `form`: the
    dataset_info.json entry for the rows. `notes`: advice for a recipe that trains on these rows.
    `count_rows`: counts the rows by reading the files. `registered`: the entry of a dataset_info.json that names these
    data already; None if there is none."""

    path: Path
    name: str
    form: InferredEntry
    notes: tuple[str, ...]
    count_rows: Callable[[], Rows]
    media_dir: Path | None = None
    registered: dataset_registry.Dataset | None = None

    def __str__(self) -> str:
        return str(self.path)

    def entry(self, folder: Path) -> dict[str, Any]:
        """Return the dataset_info.json entry for these data. `folder`: the folder of the dataset_info.json, to which
        the file name is relative."""
        if self.registered and safe_read.real_path(self.registered.folder) == safe_read.real_path(folder):
            return dict(self.registered.entry)
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
        accepted = run.template_media if run.template else MODALITIES.values()
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


def read_user_data(path: Path, columns: Mapping[str, str] = NO_COLUMNS) -> UserData | None:
    """Return the description of the data in a file or folder, made from the first rows. None if the standard library
    cannot read the data (a table such as Parquet, or a compressed file). `columns`: the columns that the user names.
    Raises RecipeError if the files cannot be read, or LLaMA-Factory cannot train on their rows."""
    counted = [row_counts.count_rows(file) for file in list_data_files(path)]
    if any(each is None or (each.number and not each.head) for each in counted):
        return None
    rows = row_counts.sum_rows(filter(None, counted))
    if rows.problem or not rows.head:
        raise RecipeError(rows.problem or f"`{path}` holds no row")
    return describe_user_data(path, None, rows.head, lambda: rows, columns)


def describe_user_data(
    path: Path,
    name: str | None,
    rows: Sequence[Row],
    count_rows: Callable[[], Rows],
    columns: Mapping[str, str] = NO_COLUMNS,
) -> UserData:
    """Return the description of a file or folder of data. `name`: the data set's name; None to take that of its entry
    in a dataset_info.json, or one made of the file's name. `rows`: the first rows. `count_rows`: counts the rows.
    `columns`: the columns that the user names. Raises RecipeError if no dataset_info.json entry fits the rows, or if
    LLaMA-Factory would stop at one of them."""
    form, registered = find_user_entry(path, rows, columns, name)
    if why := first_fatal_row(form.attr, form.stage, rows):
        raise RecipeError(f"`{path}`: {why}; write all rows in one form, or take it out")
    notes, media_dir = tuple(recipe_notes(form, rows)), media_dir_of_rows(form.attr, rows, path)
    name = name or (registered.name if registered else _dataset_name(path.stem))
    if registered and registered.name != name:
        registered = None
    return UserData(path, name, form, notes, count_rows, media_dir, registered)


def find_user_entry(
    path: Path, rows: Sequence[Row], columns: Mapping[str, str] = NO_COLUMNS, name: str | None = None
) -> tuple[InferredEntry, dataset_registry.Dataset | None]:
    """Return the dataset_info.json entry that fits the rows of a user's data, and the data set whose entry it is: of
    `columns` that the user names, else the entry that a dataset_info.json has for these data, else inferred from the
    rows (None for the data set). `path`: the path of the data. `name`: the data set that is preferred. Raises
    RecipeError if no entry fits."""
    if columns:
        try:
            return entry_of_columns(columns, rows), None
        except RecipeError as err:
            fault = separator_fault([*rows[0]]) if path.suffix == ".csv" else ""
            raise RecipeError(f"`{path}`: {fault or err}") from None
    for dataset in sorted(_registered_datasets(path), key=lambda one: one.name != (name or _dataset_name(path.stem))):
        form = form_of_entry(dataset.entry)
        if not any(entry_faults(dataset.entry)) and count_trained(form.attr, form.stage, rows):
            return form, dataset
    try:
        return infer_entry(rows), None
    except UnknownFormError as err:
        if path.suffix == ".csv" and (fault := separator_fault(err.columns)):
            raise RecipeError(f"`{path}`: {fault}") from None
        found = f"the columns {', '.join(err.columns[:12])} are of no known form: {err}"
        option = f"--columns {shell_quote(format_columns(err.proposed))}"
        remedy = f"; say which is which, such as `{option}`" if err.proposed else ""
        raise RecipeError(f"`{path}`: {found}{remedy}") from None


def _registered_datasets(path: Path) -> Iterator[dataset_registry.Dataset]:
    """Yield the data sets that the dataset_info.json in `data` or beside the data defines for this file or folder."""
    for folder in dict.fromkeys((DEFAULT_DATASET_DIR, path.parent)):
        registry = dataset_registry.read_registry(folder / dataset_registry.REGISTRY_FILE)
        for dataset in filter(None, map(registry.get, registry.entries)):
            if dataset.source == "file" and os.path.realpath(dataset.path) == os.path.realpath(path):
                yield dataset


def _dataset_name(stem: str) -> str:
    """Return a name for a data set, made of the name of its file without suffix. A recipe can use the name as it is:
    YAML reads it as text, and it contains no comma."""
    name = re.sub(r"[^\w.-]+", "_", stem)
    return name if isinstance(parse_trusted_yaml(name), str) else f"my_{name}"


def list_data_files(path: Path) -> list[Path]:
    """Return the files of a data set: the file itself, or the files of the folder. Raises RecipeError if nothing exists
    at the path, or if LLaMA-Factory cannot load the files as one data set."""
    if safe_read.path_kind(path) is None:
        if name := dataset_registry.hub_name(str(path)):
            found = f"`{name}` is not on this machine, and nothing is fetched from a hub"
            command = f"run `{dataset_registry.download_command(name)}`, and give the file of its rows"
            raise RecipeError(f"{found}; {command}; or {dataset_registry.hub_entry_remedy(name, {})}")
        named = dataset_registry.read_registry(DEFAULT_DATASET_DIR / dataset_registry.REGISTRY_FILE).get(str(path))
        remedy = "give a data file, or a folder of data files"
        if named and named.source == "file":
            remedy = f"it is a name of dataset_info.json: give its file, `{os.path.normpath(named.path)}`"
        raise RecipeError(f"`{path}` does not exist; {remedy}")
    if path.suffix in RECIPE_SUFFIXES and kind_of_file(str(path)).name == RECIPE:
        raise RecipeError(f"`{path}` is a recipe; give the data file that it is to train on")
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
