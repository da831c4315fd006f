"""Folders in which the files of a run are looked for, and which of these files messages may quote."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from validator.finding import USUAL_FINDINGS, FindingOptions
from validator.recipe import known_folders, safe_read
from validator.recipe.known_folders import catalogue_root
from validator.run.dataset_registry import REGISTRY_FILE, Registry

_KINDS_IN_REPOSITORIES = ("file", "data")
_CHECKOUT_FOLDERS = ("data", "examples")  # of LLaMA-Factory, in which recipes name registries and DeepSpeed files


@dataclass(frozen=True, eq=False)
class Workspace:
    """Folders to which a recipe's relative paths may refer. `recipe`: the recipe's path. `folders`: the folders in
    which a relative path is looked for, the first that has it before the others. `untrusted`: somebody else may have
    written the recipe, so messages quote nothing from files outside of the repository (see recipe/known_folders.py).
    `registry`: data sets that replace the dataset_info.json on disk, such as those of a plan or of the user's own data.
    `options`: what a missing path means."""

    recipe: str = "-"
    folders: tuple[Path, ...] = ()
    untrusted: bool = False
    registry: Registry | Literal["on disk"] | None = "on disk"
    options: FindingOptions = USUAL_FINDINGS

    def may_quote(self, file: Path) -> bool:
        """True if messages may quote the file: the recipe is trusted, or the file lies in the recipe's repository."""
        return not self.untrusted or known_folders.is_in_repository(file, self.recipe)

    def find(self, path: str) -> tuple[Path, bool] | None:
        """Return the first folder's path under which the relative path exists, and True if LLaMA-Factory would find it.
        LLaMA-Factory looks only in the working directory, and finds an absolute path anywhere. None if the path exists
        in none of the folders."""
        is_absolute = Path(path).is_absolute()
        found = (each for each in self.folders if safe_read.path_kind(each / path))
        return next(((each / path, is_absolute or each == self.start) for each in found), None)

    def is_taken_to_exist(self, path: str | Path) -> bool:
        """True if the path lies below a folder that the configuration names as one of the training machine."""
        prefixes = [Path.cwd() / prefix for prefix in self.options.path_prefixes or ()]
        return any(place.is_relative_to(prefix) for prefix in prefixes for place in self._places(path))

    def is_ignored_by_git(self, path: str | Path) -> bool:
        """True if git ignores the path, so that no clone of the repository has it."""
        return any(map(known_folders.is_ignored_by_git, self._places(path)))

    def _places(self, path: str | Path) -> Iterator[Path]:
        """Yield where a path leads to from each folder of the repository in which relative paths are looked for."""
        root = known_folders.repository_root(self.recipe) or Path.cwd()
        for folder in (Path.cwd(), *self.folders):
            if folder.is_relative_to(root):
                yield Path(os.path.normpath(folder / path))

    def may_be_elsewhere(self, path: str | Path, kind: str = "data") -> bool:
        """True if a path that is missing here may exist on the training machine. Paths below the folders that are named
        as folders of that machine may. If missing paths are notes, so may paths that lead out of the repository, paths
        that git ignores, and models, adapters and results of runs, which no repository holds. `kind`: the kind of the
        path's key (PathKey).

        Many recipes are started in LLaMA-Factory's own checkout. So its folders count as outside of a repository that
        has no folder of that name."""
        if self.is_taken_to_exist(path):
            return True
        if self.options.paths == "error":
            return False
        place = Path(os.path.normpath(Path.cwd() / path))
        first = Path(path).parts[0] if Path(path).parts else ""
        is_of_checkout = first in _CHECKOUT_FOLDERS and self.find(first) is None
        is_held = kind in _KINDS_IN_REPOSITORIES and known_folders.is_in_repository(place, self.recipe)
        return is_of_checkout or not is_held or self.is_ignored_by_git(path)

    def find_dataset_dir(self, path: str) -> tuple[Path, bool] | None:
        """Return what `find` returns for a `dataset_dir`: the first folder of this path that holds a dataset_info.json,
        or else the first that exists. A registry beside the recipe comes before another in the working directory,
        because it was written for the recipe; `lmf-recipes train` names it in its command."""
        beside = [folder for folder in self.folders if self._is_beside_recipe(folder)]
        ordered = replace(self, folders=(*beside, *(each for each in self.folders if each not in beside)))
        registry = ordered.find(f"{path}/{REGISTRY_FILE}")
        return (registry[0].parent, registry[1]) if registry else self.find(path)

    def _is_beside_recipe(self, folder: Path) -> bool:
        """True if the recipe lies in the folder or below it, and the working directory does not."""
        return Path(self.recipe).absolute().is_relative_to(folder) and not Path.cwd().is_relative_to(folder)

    @property
    def start(self) -> Path:
        """The folder from which LLaMA-Factory is started: the working directory, or the only folder of a run without
        a file."""
        cwd = Path.cwd()
        return cwd if cwd in self.folders else self.folders[0]

    def with_catalogue(self, registry: Registry | None) -> Workspace:
        """Return a workspace that also looks for files in the catalogue's folder. `registry`: the data sets of the run,
        which are used instead of the catalogue's dataset_info.json; None for no data sets."""
        return replace(self, folders=(*self.folders, catalogue_root()), registry=registry)
