"""A data file or folder of the user's own: its name, the entry that its rows need, and the run that `data` judges it
by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from validator.dataset import data_files
from validator.errors import RecipeError
from validator.knowledge import devices, models
from validator.recipe.recipe_file import RECIPE_SUFFIXES, load_recipe, with_overrides
from validator.rows.entry_inference import ROWS_FOR_INFERENCE, InferredEntry
from validator.rows.reading_limits import UnreadableError
from validator.run import dataset_registry
from validator.run.settings import RunSettings, resolve, run_of_values
from validator.run.user_data import UserData, describe_user_data, infer_user_entry, list_data_files
from validator.run.workspace import Workspace


def read_user_data(path: Path, name: str | None = None) -> UserData:
    """Return what a file or folder of data holds; None as name: that of the file. Raises RecipeError."""
    with naming_unreadable_file(path):
        rows = _first_rows(path)
    return describe_user_data(path, name, rows, partial(_count_rows, path))


def _count_rows(path: Path) -> int:
    """Rows of a file or folder; an estimate for large files. Raises RecipeError."""
    counted = ((file, dataset_registry.count_rows(file)) for file in list_data_files(path))
    with naming_unreadable_file(path):
        return sum(rows.number if rows else data_files.count_rows(file) for file, rows in counted)


@contextmanager
def naming_unreadable_file(path: Path) -> Iterator[None]:
    """Turn an UnreadableError into a RecipeError that names the file."""
    try:
        yield
    except UnreadableError as err:
        raise RecipeError(f"`{path}`: row {err.row} {err}" if err.row else f"`{path}` {err}") from None


def _first_rows(path: Path) -> list[dict[str, Any]]:
    rows = data_files.first_rows(list_data_files(path), ROWS_FOR_INFERENCE)
    if not rows:
        raise UnreadableError(0, "holds no row")
    return rows


def job_of_source(
    path: str, model: str | None, overrides: Sequence[str] = (), machine: str | None = None
) -> RunSettings:
    """Return the run of a recipe, after the overrides, or one that trains on a data file. Raises RecipeError for what
    is neither."""
    if path == "-" or path.endswith(RECIPE_SUFFIXES):
        document = load_recipe(path)
        if not document.readable:
            raise RecipeError(f"{path}: {document.problems[0].message}")
        changes = [*overrides, *([f"model_name_or_path={model}"] if model else [])]
        return resolve(with_overrides(document, changes), machine)
    return _job_of_data_file(Path(path), model, machine)


def _job_of_data_file(path: Path, model: str | None, machine: str | None) -> RunSettings:
    try:
        inferred = infer_user_entry(path, _first_rows(path))
    except UnreadableError:  # which the study tells of, row by row
        inferred = InferredEntry({}, "sft")
    values: dict[str, Any] = {
        "stage": inferred.stage, "do_train": True, "finetuning_type": "lora", "dataset": path.stem,
        "dataset_dir": {path.stem: {**inferred.entry, "file_name": str(path)}},
    }  # fmt: skip
    if model:
        values |= {"model_name_or_path": model, "template": models.find_model(model).template}
    there = devices.parse_machine(machine) if machine else None
    return run_of_values(values, machine=there, workspace=Workspace(str(path), (Path.cwd(),)))
