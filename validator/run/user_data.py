"""A data file or folder of the user's own: its name, the entry of dataset_info.json that its rows need, and what a
recipe for such rows should heed. `dataset/user_data` reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from validator.errors import RecipeError
from validator.recipe import registry_edits
from validator.rows.entry_inference import InferredEntry
from validator.rows.media_columns import MODALITIES

from . import dataset_registry
from .prediction import Job


@dataclass(frozen=True)
class UserData:
    """Data of the user's own: a file or folder, the name that a recipe may give it, and its form. `notes` are what a
    recipe for such rows should heed beside its keys; `count_rows` reads the files to count their rows."""

    path: Path
    name: str
    form: InferredEntry
    notes: tuple[str, ...]
    count_rows: Callable[[], int]

    def __str__(self) -> str:
        return str(self.path)

    def entry(self, folder: Path) -> dict[str, Any]:
        """The entry for a registry in this folder."""
        return {"file_name": registry_edits.path_from_registry(self.path, folder), **self.form.entry}

    @property
    def registry(self) -> dataset_registry.Registry:
        """One that holds nothing else."""
        return dataset_registry.Registry(Path(), {self.name: self.entry(Path())})

    def require_media(self, job: Job) -> None:
        """Raises RecipeError where the rows hold images, films or sound, and the job's template takes none (PTH121)."""
        held = [part for part in MODALITIES if part in self.form.entry.get("columns", ())] if job.stage != "pt" else []
        taken = job.template.get("media", ()) if job.template else MODALITIES.values()
        if refused := [part for part in held if MODALITIES[part] not in taken]:
            what = " and ".join(refused)
            raise RecipeError(f"`{self}` holds {what}, and {job.model_name} takes none; choose a model for {what}")

    @cached_property
    def rows(self) -> int:
        """How many rows there are; of large files about."""
        return self.count_rows()
