"""Answers for what a user passes to `data`: a recipe, or a data file or folder. The answer is the report on the data,
or with `--register` the entry for the data, which is written into dataset_info.json."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from validator.configuration import configured, find_configuration
from validator.dataset import data_files, data_report, recipe_datasets
from validator.dataset.data_report import DataReport, DroppedRows
from validator.dataset.row_selection import select_rows
from validator.dataset.token_counting import CharacterCounter
from validator.errors import RecipeError
from validator.escaping import shell_quote
from validator.knowledge import devices, models
from validator.knowledge.file_kinds import RECIPE, kind_of_file
from validator.output.progress import ProgressBar
from validator.recipe import safe_read
from validator.recipe.recipe_file import RECIPE_SUFFIXES, load_recipe, with_overrides
from validator.rows import registry_edits
from validator.rows.entry_inference import ROWS_FOR_INFERENCE, InferredEntry, template_notes
from validator.rows.media_columns import media_dir_of_rows
from validator.rows.reading_limits import UnreadableError
from validator.run import dataset_registry, row_counts
from validator.run.row_counts import Rows
from validator.run.settings import RunSettings, resolve, run_of_values
from validator.run.user_data import (
    DEFAULT_DATASET_DIR,
    NO_COLUMNS,
    UserData,
    describe_user_data,
    find_user_entry,
    list_data_files,
)
from validator.run.workspace import Workspace
from validator.wording import relative_to_cwd


def report_on_source(
    source: str,
    model: str | None,
    near: bool | None,
    overrides: Sequence[str] = (),
    machine: str | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> DataReport:
    """Return the report on the data of a recipe (with the overrides applied) or on a data file, and show a progress bar
    meanwhile. `near` says whether to look for near duplicates (None: only if that is quick). `model` and `machine`
    replace the recipe's own. `columns` are those that the user names for a data file. Raises RecipeError if the source
    is neither a recipe nor readable data."""
    run = run_of_source(source, model, overrides, machine, columns)
    progress = ProgressBar(sum(dataset.rows.number for dataset in run.data.datasets if dataset.rows))
    try:
        report = data_report.build_report(run, near, progress)
    finally:
        progress.close()
    return report if _is_recipe(source) else _without_recipe(report, run, source)


def _without_recipe(report: DataReport, run: RunSettings, file: str) -> DataReport:
    """Return the report on a data file, with a note on the settings that were taken for want of a recipe. Without a
    machine, memory is not judged for them."""
    epochs = f"{run.args.number('num_train_epochs'):g} epochs"
    taken = f"lora, batch {run.batch.micro_batch} a device, {epochs}, cutoff_len {report.cutoff_len}"
    note = f"no recipe: {taken} are LLaMA-Factory's defaults; `lmf-recipes data RECIPE` takes a recipe's"
    made = f"`lmf-recipes plan --model M --machine MACHINE --data {shell_quote(file)} --write mine.yaml` makes one"
    notes = [*report.notes, f"{note}, {made}"]
    return replace(report, memory=report.memory if run.machine else None, notes=notes)


def read_user_data(path: Path, name: str | None = None, columns: Mapping[str, str] = NO_COLUMNS) -> UserData:
    """Describe the content of a data file or folder. `name` is the name of the data set; None takes that of its entry
    or of the file. `columns` are those that the user names. Raises RecipeError if the data cannot be read or hold no
    row."""
    with naming_unreadable_file(path):
        rows = _first_rows(path)
    return describe_user_data(path, name, rows, partial(_count_rows, path), columns)


def _count_rows(path: Path) -> Rows:
    """Return the rows of a data file or folder. Raises RecipeError if a file cannot be read."""
    counted = ((file, row_counts.count_rows(file)) for file in list_data_files(path))
    with naming_unreadable_file(path):
        return row_counts.sum_rows(rows or Rows(data_files.count_rows(file)) for file, rows in counted)


@contextmanager
def naming_unreadable_file(path: Path) -> Iterator[None]:
    """Within the `with` block, convert an UnreadableError into a RecipeError that names the file and the row."""
    try:
        yield
    except UnreadableError as err:
        raise RecipeError(f"`{path}`: {err.where} {err}" if err.where else f"`{path}` {err}") from None


def _first_rows(path: Path) -> list[dict[str, Any]]:
    rows = data_files.first_rows(list_data_files(path), ROWS_FOR_INFERENCE)
    if not rows:
        raise UnreadableError(0, "holds no row")
    return rows


def run_of_source(
    path: str,
    model: str | None,
    overrides: Sequence[str] = (),
    machine: str | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> RunSettings:
    """Return the run that a recipe describes, with the overrides applied, or a run that trains on a data file. `path`
    is `-` for standard input. `model` and `machine` replace the recipe's own. `columns` are those that the user names
    for a data file. Raises RecipeError if the recipe cannot be read, or a file is no data file."""
    if _is_recipe(path):
        if columns:
            raise RecipeError(f"--columns is for a data file, and `{path}` is none; name the columns in its data set")
        document = load_recipe(path)
        if not document.readable:
            raise RecipeError(f"{path}: {document.problems[0].message}")
        changes = [*overrides, *([f"model_name_or_path={model}"] if model else [])]
        return resolve(configured(with_overrides(document, changes)), machine)
    if (kind := kind_of_file(path)).is_read_by_recipes:
        raise RecipeError(
            f"`{path}` is {kind.words}, not data; name the recipe (.yaml) that uses it, or a file of data"
        )
    if overrides:
        raise RecipeError(
            f"`{path}` is data, and {overrides[0]} a setting of a recipe; name a recipe that has the data"
        )
    rows: list[dict[str, Any]] = []
    registered = None
    try:
        rows = _first_rows(Path(path))
        inferred, registered = find_user_entry(Path(path), rows, columns)
    except UnreadableError:  # which the report names, with the row
        inferred = InferredEntry({}, "sft")
    media_dir = media_dir_of_rows(inferred.attr, rows, Path(path)) or Path(path).parent
    name = registered.name if registered else Path(path).stem
    return _run_on_data(Path(path), name, inferred, media_dir, model, machine)


def _is_recipe(path: str) -> bool:
    """True if a path, or `-` for standard input, is read as a recipe and not as data."""
    kind = kind_of_file(path) if path != "-" else None
    return kind is None or kind.name == RECIPE or path.endswith(RECIPE_SUFFIXES)


def _run_on_data(
    path: Path,
    name: str,
    inferred: InferredEntry,
    media_dir: Path,
    model: str | None = None,
    machine: str | None = None,
) -> RunSettings:
    """Return a LoRA run that trains on a data file or folder. `inferred` holds the stage and the entry for
    dataset_info.json that suit the rows. `media_dir`: the folder to which images, videos and sound are relative."""
    values: dict[str, Any] = {
        "stage": inferred.stage, "do_train": True, "finetuning_type": "lora", "dataset": [name],
        "dataset_dir": {name: {**inferred.entry, "file_name": str(path)}}, "media_dir": str(media_dir),
    }  # fmt: skip
    if model:
        found = models.find_model_by_any_name(model)
        values |= {"model_name_or_path": found.name, "template": found.template}
    machine = machine or find_configuration(str(path)).header_fields.get("machine")
    parsed_machine = devices.parse_machine(machine) if machine else None
    return run_of_values(values, machine=parsed_machine, workspace=Workspace(str(path), (Path.cwd(),)))


@dataclass(frozen=True)
class Registration:
    """An entry of dataset_info.json for the user's data. `path` is the registry file, and `settings` are the keys of a
    recipe that trains on the data. `added` is false if the registry held the entry already. `rows` is the number of
    rows in the data; `drops` are the rows among them that LLaMA-Factory does not train on."""

    path: str
    name: str
    entry: Mapping[str, Any]
    added: bool
    settings: Mapping[str, str]
    rows: int
    drops: list[DroppedRows]
    notes: list[str]


def register_data(
    path: Path, name: str, folder: Path | None = None, columns: Mapping[str, str] = NO_COLUMNS
) -> Registration:
    """Write an entry for a data file or folder into dataset_info.json under this name. `folder` is the recipe's
    `dataset_dir`. If `folder` is None, the file's own folder is used if it holds a registry, and `data` otherwise.
    `columns` are those that the user names. Raises RecipeError and writes nothing if the name contains a comma, or
    LLaMA-Factory would stop because of the data."""
    if not name.strip() or "," in name or name != name.strip():
        raise RecipeError(f"`{name}` cannot be the name of a data set: in a recipe, commas separate names")
    folder = folder or (
        path.parent if safe_read.path_kind(path.parent / dataset_registry.REGISTRY_FILE) else DEFAULT_DATASET_DIR
    )
    registry = folder / dataset_registry.REGISTRY_FILE
    mine = read_user_data(path, name, columns)
    entry = mine.entry(folder)
    # Too few rows to fill one packed sequence are no fault of the entry.
    run = _run_on_data(path, name, mine.form, mine.media_dir or folder).updated({"packing": False})
    (loaded,) = recipe_datasets.load_datasets(run, CharacterCounter(), lambda _rows: None)
    selection = select_rows(run, [loaded])
    for problem in selection.problems:
        raise RecipeError(f"{problem.place}: {problem.message}; LLaMA-Factory stops")
    try:
        added = bool(registry_edits.add_entries(registry, {name: entry}))
    except RecipeError as err:
        raise RecipeError(f"{err}, or register under another name") from None
    usual = os.path.realpath(folder) == os.path.realpath(DEFAULT_DATASET_DIR)
    settings = {"dataset": name, **({} if usual else {"dataset_dir": str(folder)}), "stage": mine.form.stage}
    if mine.media_dir and mine.media_dir != safe_read.real_path(folder):
        settings["media_dir"] = str(relative_to_cwd(mine.media_dir))
    notes = [*mine.notes, *template_notes(mine.form)]
    drops = data_report.dropped_rows(selection)
    return Registration(str(registry), name, entry, added, settings, loaded.rows.read, drops, notes)
