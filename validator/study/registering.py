"""From a data file to its entry in dataset_info.json."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from validator.diagnostic import RecipeError
from validator.job import datasets
from validator.read import disk
from validator.samples.fate import KEPT
from validator.samples.form import form
from validator.samples.guess import Guess
from validator.samples.needs import templates
from validator.samples.outcome import judge
from validator.samples.remedy import written
from validator.study import columns, own, reading
from validator.study.results import Drop
from validator.study.survey import Survey
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


def register(path: Path, name: str, folder: Path | None = None) -> Registration:
    """Write the entry for a file or folder of data under this name. `folder` is the recipe's `dataset_dir`; None: that
    of the file if it holds a registry, else `data`. Raises RecipeError, and writes nothing then."""
    if not name.strip() or "," in name or name != name.strip():
        raise RecipeError(f"`{name}` cannot be named in a recipe, where commas part the names of data sets")
    folder = folder or (path.parent if disk.kind(path.parent / datasets.REGISTRY) else Path(_USUAL))
    mine = own.own(path, name)
    entry = mine.entry(folder)
    with own.readable(path):
        rows, drops = _compared(own.files(path), mine.form)
    try:
        added = bool(registry.add(folder / datasets.REGISTRY, {name: entry}))
    except RecipeError as err:
        raise RecipeError(f"{err}; `{path}` needs {written(name, entry)}") from None
    settings = _settings(name, folder, mine.form.stage)
    notes = [*mine.notes, *templates(mine.form)]
    return Registration(str(folder / datasets.REGISTRY), name, entry, added, settings, rows, drops, notes)


def _settings(name: str, folder: Path, stage: str) -> dict[str, str]:
    """The keys of a recipe that trains on the data; `dataset_dir` only where it is not the usual one."""
    usual = os.path.realpath(folder) == os.path.realpath(_USUAL)
    return {"dataset": name, **({} if usual else {"dataset_dir": str(folder)}), "stage": stage}


def _compared(held: list[Path], suited: Guess) -> tuple[int, list[Drop]]:
    """How many rows were looked at, and those that are dropped. Raises RecipeError where LLaMA-Factory stops."""
    seen, meant = Survey(), form(suited.entry)
    judged, dropped, stopping = judge(meant, suited.stage), dict[str, list[str]](), dict[str, list[str]]()
    for path in held:
        seen.files.append((len(seen), path))
        for line, row in islice(reading.rows(path), _LOOKED - len(seen)):
            seen.meet(line, row)
            seen.fates.append(KEPT)
            for why, places in zip(judged(row), (dropped, stopping), strict=True):
                if why:
                    places.setdefault(why, []).append(f"{path}:{line}")
    for why in columns.problems(seen, meant):
        raise RecipeError(f"`{held[0]}`: {why}; LLaMA-Factory stops")
    for stop in _drops(stopping):
        share = f"{stop.rows:,} of {len(seen):,} rows"
        raise RecipeError(f"{share} stop LLaMA-Factory: {stop.reason} ({', '.join(stop.examples)}); take them out")
    return len(seen), _drops(dropped)


def _drops(places: Mapping[str, list[str]]) -> list[Drop]:
    return [Drop(why, len(where), where[:_EXAMPLES]) for why, where in places.items()]
