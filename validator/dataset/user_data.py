"""A data file or folder of the user's own: its name, the entry that its rows need, and the run that `data` judges it
by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from validator.errors import RecipeError
from validator.knowledge import devices, models
from validator.recipe.recipe_file import RECIPE_SUFFIXES, load_recipe, with_overrides
from validator.recipe.safe_read import parse_trusted_yaml
from validator.rows.entry_inference import (
    ROWS_FOR_INFERENCE,
    InferredEntry,
    UnknownFormError,
    infer_entry,
    recipe_notes,
)
from validator.rows.outcomes import first_fatal_row
from validator.rows.reading_limits import UnreadableError
from validator.run import dataset_registry
from validator.run.prediction import Job, resolve
from validator.run.user_data import UserData

from . import readers
from .data_files import list_data_files


def read_user_data(path: Path, name: str | None = None) -> UserData:
    """What a file or folder of data holds; its name is that of the file where none is given. Raises RecipeError."""
    with naming_unreadable_file(path):
        rows = _first_rows(path)
    suited = _infer_entry(path, rows)
    if why := first_fatal_row(suited.entry, suited.stage, rows):
        raise RecipeError(f"`{path}`: {why}; write all rows in one form, or take it out")
    notes = tuple(recipe_notes(suited, rows))
    return UserData(path, name or _dataset_name(path.stem), suited, notes, partial(_count_rows, path))


def _count_rows(path: Path) -> int:
    """Rows of a file or folder; of large files about. Raises RecipeError."""
    counted = ((file, dataset_registry.count_rows(file)) for file in list_data_files(path))
    with naming_unreadable_file(path):
        return sum(rows.number if rows else readers.count_rows(file) for file, rows in counted)


def _dataset_name(stem: str) -> str:
    """A name that YAML reads as text, and that no comma parts."""
    name = re.sub(r"[^\w.-]+", "_", stem)
    return name if isinstance(parse_trusted_yaml(name), str) else f"my_{name}"


@contextmanager
def naming_unreadable_file(path: Path) -> Iterator[None]:
    """Turns rows that cannot be read into a RecipeError that names the file."""
    try:
        yield
    except UnreadableError as err:
        raise RecipeError(f"`{path}`: row {err.row} {err}" if err.row else f"`{path}` {err}") from None


def infer_entry_of_path(path: Path) -> InferredEntry:
    """The form of a file, or of the files of a folder. Raises RecipeError for one that no entry describes, and
    UnreadableError where there is no row, or not even the first can be read."""
    return _infer_entry(path, _first_rows(path))


def _first_rows(path: Path) -> list[dict[str, Any]]:
    rows = readers.first_rows(list_data_files(path), ROWS_FOR_INFERENCE)
    if not rows:
        raise UnreadableError(0, "holds no row")
    return rows


def _infer_entry(path: Path, rows: list[dict[str, Any]]) -> InferredEntry:
    try:
        return infer_entry(rows)
    except UnknownFormError as err:
        said = f"the columns {', '.join(err.columns[:12])} are of no known form"
        raise RecipeError(f"`{path}`: {said}: {err}") from None


def job_of_source(path: str, model: str | None, overrides: Sequence[str] = (), machine: str | None = None) -> Job:
    """The job behind a recipe, after the overrides, or a data file; on the machine, if one is named. Raises RecipeError
    for what is neither."""
    if path == "-" or path.endswith(RECIPE_SUFFIXES):
        document = load_recipe(path)
        if not document.readable:
            raise RecipeError(f"{path}: {document.problems[0].message}")
        changes = [*overrides, *([f"model_name_or_path={model}"] if model else [])]
        return resolve(with_overrides(document, changes), machine)
    return _job_of_data_file(Path(path), model, machine)


def _job_of_data_file(path: Path, model: str | None, machine: str | None) -> Job:
    try:
        suited = infer_entry_of_path(path)
    except UnreadableError:  # which the study tells of, row by row
        suited = InferredEntry({}, "sft")
    values: dict[str, Any] = {
        "stage": suited.stage, "do_train": True, "finetuning_type": "lora", "dataset": path.stem,
        "dataset_dir": {path.stem: {**suited.entry, "file_name": str(path)}},
    }  # fmt: skip
    if model:
        values |= {"model_name_or_path": model, "template": models.find_model(model).template}
    there = devices.parse_machine(machine) if machine else None
    return Job(values, machine=there, path=str(path), folders=(Path.cwd(),))
