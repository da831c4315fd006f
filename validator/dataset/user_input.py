"""Answers for what a user hands to `data`, a recipe or a data file or folder of their own: the report on it, or the
entry for it, written into dataset_info.json."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from validator.dataset import data_files, data_report, recipe_datasets
from validator.dataset.data_report import DataReport, DroppedRows
from validator.dataset.row_selection import select_rows
from validator.dataset.token_counting import CharacterCounter
from validator.errors import RecipeError
from validator.knowledge import devices, models
from validator.output.progress import ProgressBar
from validator.recipe import registry_edits, safe_read
from validator.recipe.recipe_file import RECIPE_SUFFIXES, load_recipe, with_overrides
from validator.rows.dataset_attr import entry_as_json
from validator.rows.entry_inference import ROWS_FOR_INFERENCE, InferredEntry, template_notes
from validator.rows.reading_limits import UnreadableError
from validator.run import dataset_registry
from validator.run.settings import RunSettings, resolve, run_of_values
from validator.run.user_data import UserData, describe_user_data, infer_user_entry, list_data_files
from validator.run.workspace import Workspace

_DEFAULT_DATASET_DIR = "data"  # LLaMA-Factory's `dataset_dir` where a recipe names none


def report_on_source(
    source: str, model: str | None, near: bool | None, overrides: Sequence[str] = (), machine: str | None = None
) -> DataReport:
    """Return the report on the data of a recipe, after the overrides, or on a data file, with a progress bar meanwhile.
    Raises RecipeError."""
    run = run_of_source(source, model, overrides, machine)
    progress = ProgressBar(sum(dataset.rows.number for dataset in run.data.datasets if dataset.rows))
    try:
        return data_report.build_report(run, near, progress)
    finally:
        progress.close()


def read_user_data(path: Path, name: str | None = None) -> UserData:
    """Return what a file or folder of data holds. `name`: of the data set, None for the name of the file. Raises
    RecipeError."""
    with naming_unreadable_file(path):
        rows = _first_rows(path)
    return describe_user_data(path, name, rows, partial(_count_rows, path))


def _count_rows(path: Path) -> int:
    """Return the number of rows of a file or folder, estimated for large files. Raises RecipeError."""
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


def run_of_source(
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
    try:
        inferred = infer_user_entry(Path(path), _first_rows(Path(path)))
    except UnreadableError:  # which the report names, with the row
        inferred = InferredEntry({}, "sft")
    return _run_on_data(Path(path), Path(path).stem, inferred, model, machine)


def _run_on_data(
    path: Path, name: str, inferred: InferredEntry, model: str | None = None, machine: str | None = None
) -> RunSettings:
    """Return a run that trains on a data file or folder under this entry."""
    values: dict[str, Any] = {
        "stage": inferred.stage, "do_train": True, "finetuning_type": "lora", "dataset": [name],
        "dataset_dir": {name: {**inferred.entry, "file_name": str(path)}},
    }  # fmt: skip
    if model:
        values |= {"model_name_or_path": model, "template": models.find_model(model).template}
    there = devices.parse_machine(machine) if machine else None
    return run_of_values(values, machine=there, workspace=Workspace(str(path), (Path.cwd(),)))


@dataclass(frozen=True)
class Registration:
    """An entry of dataset_info.json (`path`), and the keys of a recipe that trains on it. `added` is false if the entry
    was there already; `drops` are rows that are not trained, among the `rows` of the data."""

    path: str
    name: str
    entry: Mapping[str, Any]
    added: bool
    settings: Mapping[str, str]
    rows: int
    drops: list[DroppedRows]
    notes: list[str]


def register_data(path: Path, name: str, folder: Path | None = None) -> Registration:
    """Write the entry for a file or folder of data under this name. `folder` is the recipe's `dataset_dir`; None: that
    of the file if it holds a registry, else `data`. Raises RecipeError, and writes nothing then."""
    if not name.strip() or "," in name or name != name.strip():
        raise RecipeError(f"`{name}` cannot be the name of a data set: in a recipe, commas separate names")
    folder = folder or (
        path.parent if safe_read.path_kind(path.parent / dataset_registry.REGISTRY_FILE) else Path(_DEFAULT_DATASET_DIR)
    )
    registry = folder / dataset_registry.REGISTRY_FILE
    mine = read_user_data(path, name)
    entry = mine.entry(folder)
    # Too few rows to fill one packed sequence are no fault of the entry.
    run = _run_on_data(path, name, mine.form).updated({"packing": False})
    (loaded,) = recipe_datasets.load_datasets(run, CharacterCounter(), lambda _rows: None)
    selection = select_rows(run, [loaded])
    for problem in selection.problems:
        raise RecipeError(f"{problem.place}: {problem.message}; LLaMA-Factory stops")
    try:
        added = bool(registry_edits.add_entries(registry, {name: entry}))
    except RecipeError as err:
        raise RecipeError(f"{err}; `{path}` needs {entry_as_json(name, entry)}") from None
    usual = os.path.realpath(folder) == os.path.realpath(_DEFAULT_DATASET_DIR)
    settings = {"dataset": name, **({} if usual else {"dataset_dir": str(folder)}), "stage": mine.form.stage}
    notes = [*mine.notes, *template_notes(mine.form)]
    drops = data_report.dropped_rows(selection)
    return Registration(str(registry), name, entry, added, settings, loaded.rows.read, drops, notes)
