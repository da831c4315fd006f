"""Writing the entry for a data file into dataset_info.json, after a comparison of its rows with that entry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from validator.dataset import data_files, recipe_datasets, user_data
from validator.dataset.data_report import DroppedRows
from validator.dataset.row_scan import ROW, ScannedRows
from validator.errors import RecipeError
from validator.recipe import registry_edits, safe_read
from validator.rows.dataset_attr import DatasetAttr, entry_as_json
from validator.rows.entry_inference import InferredEntry, template_notes
from validator.rows.outcomes import row_checker
from validator.run import dataset_registry
from validator.run.user_data import list_data_files

_DEFAULT_DATASET_DIR = "data"  # LLaMA-Factory's `dataset_dir` where a recipe names none
_COMPARED_ROWS = 100_000  # rows that are compared with the form of the first
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
    drops: list[DroppedRows]
    notes: list[str]


def register_data(path: Path, name: str, folder: Path | None = None) -> Registration:
    """Write the entry for a file or folder of data under this name. `folder` is the recipe's `dataset_dir`; None: that
    of the file if it holds a registry, else `data`. Raises RecipeError, and writes nothing then."""
    if not name.strip() or "," in name or name != name.strip():
        raise RecipeError(f"`{name}` cannot be named in a recipe, where commas part the names of data sets")
    folder = folder or (
        path.parent if safe_read.path_kind(path.parent / dataset_registry.REGISTRY_FILE) else Path(_DEFAULT_DATASET_DIR)
    )
    registry = folder / dataset_registry.REGISTRY_FILE
    mine = user_data.read_user_data(path, name)
    entry = mine.entry(folder)
    with user_data.naming_unreadable_file(path):
        rows, drops = _compare_rows(list_data_files(path), mine.form)
    try:
        added = bool(registry_edits.add_entries(registry, {name: entry}))
    except RecipeError as err:
        raise RecipeError(f"{err}; `{path}` needs {entry_as_json(name, entry)}") from None
    usual = os.path.realpath(folder) == os.path.realpath(_DEFAULT_DATASET_DIR)
    settings = {"dataset": name, **({} if usual else {"dataset_dir": str(folder)}), "stage": mine.form.stage}
    notes = [*mine.notes, *template_notes(mine.form)]
    return Registration(str(registry), name, entry, added, settings, rows, drops, notes)


def _compare_rows(files: list[Path], inferred: InferredEntry) -> tuple[int, list[DroppedRows]]:
    """Return how many rows were looked at, and those that are dropped. Raises RecipeError if LLaMA-Factory would
    stop."""
    scan, attr, lines = ScannedRows(), DatasetAttr.from_entry(inferred.entry), list[int]()
    check, dropped, fatal = row_checker(attr, inferred.stage), dict[str, list[str]](), dict[str, list[str]]()
    for path in files:
        scan.files.append((scan.read, path))
        for line, row in islice(data_files.read_rows(path), _COMPARED_ROWS - scan.read):
            scan.count_row(row)
            lines.append(line)
            for why, places in zip(check(row), (dropped, fatal), strict=True):
                if why:
                    places.setdefault(why, []).append(f"{path}:{line}")
    rows = np.zeros(len(lines), ROW)
    rows["line"] = lines
    scan.add_rows(rows)
    for why in recipe_datasets.column_problems(scan, attr):
        raise RecipeError(f"`{files[0]}`: {why}; LLaMA-Factory stops")
    for why, where in fatal.items():
        found = f"{len(where):,} of {scan.read:,} rows stop LLaMA-Factory: {why}"
        raise RecipeError(f"{found} ({', '.join(where[:_EXAMPLES])}); take them out")
    return scan.read, [DroppedRows(why, len(where), where[:_EXAMPLES]) for why, where in dropped.items()]
