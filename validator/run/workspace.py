"""Folders where the files of a run are looked for, and which of the files messages may quote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from validator.recipe import known_folders, safe_read
from validator.recipe.known_folders import catalogue_root
from validator.run.dataset_registry import Registry


@dataclass(frozen=True, eq=False)
class Workspace:
    """The recipe's place, and the folders that a relative path may be meant from, the working directory first.

    `untrusted`: somebody else may have written the recipe, and is shown nothing of files outside of the repository (see
    recipe/known_folders.py). `registry` stands in for the one on disk: the data sets of a plan or of the user's own."""

    recipe: str = "-"
    folders: tuple[Path, ...] = ()
    untrusted: bool = False
    registry: Registry | Literal["on disk"] | None = "on disk"

    def may_quote(self, file: Path) -> bool:
        """True if messages may quote the file."""
        return not self.untrusted or known_folders.is_in_repository(file, self.recipe)

    def find(self, path: str) -> tuple[Path, bool] | None:
        """Return where a path exists, and whether that is where LLaMA-Factory looks (the working directory)."""
        return next(
            ((each / path, each == self.folders[0]) for each in self.folders if safe_read.path_kind(each / path)), None
        )

    def with_catalogue(self, registry: Registry | None) -> Workspace:
        """Return a workspace in which the catalogue's files are found, too, but for its data sets."""
        return replace(self, folders=(*self.folders, catalogue_root()), registry=registry)
