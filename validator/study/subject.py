"""What `data` is asked about: a recipe, or a file of data as a recipe would use it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from validator.diagnostic import RecipeError
from validator.job.job import Job, resolve
from validator.read.override import with_overrides
from validator.read.recipe import SUFFIXES, load
from validator.samples.guess import Guess
from validator.study import own
from validator.study.values import UnreadableError
from validator.tables import machines, models


def job(path: str, model: str | None, overrides: Sequence[str] = (), machine: str | None = None) -> Job:
    """The job behind a recipe, after the overrides, or a data file; on the machine, if one is named. Raises RecipeError
    for what is neither."""
    if path == "-" or path.endswith(SUFFIXES):
        document = load(path)
        if not document.readable:
            raise RecipeError(f"{path}: {document.problems[0].message}")
        changes = [*overrides, *([f"model_name_or_path={model}"] if model else [])]
        return resolve(with_overrides(document, changes), machine)
    return _of_file(Path(path), model, machine)


def _of_file(path: Path, model: str | None, machine: str | None) -> Job:
    try:
        suited = own.described(path)
    except UnreadableError:  # which the study tells of, row by row
        suited = Guess({}, "sft")
    values: dict[str, Any] = {
        "stage": suited.stage, "do_train": True, "finetuning_type": "lora", "dataset": path.stem,
        "dataset_dir": {path.stem: {**suited.entry, "file_name": str(path)}},
    }  # fmt: skip
    if model:
        values |= {"model_name_or_path": model, "template": models.model(model).template}
    there = machines.machine(machine) if machine else None
    return Job(values, machine=there, path=str(path), folders=(Path.cwd(),))
