"""The other dataset_info.json files of a repository: where a data set is defined that the recipe's own `dataset_dir`
does not define."""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from pathlib import Path

from validator.recipe import known_folders, safe_read
from validator.run.dataset_registry import REGISTRY_FILE, Registry, read_registry
from validator.run.settings import RunSettings

_MAX_REGISTRIES = 50


def registries_defining(run: RunSettings, names: Set[str]) -> list[Registry]:
    """Return the registries of the recipe's repository that define all of these data sets, those nearest to the
    repository's root first. The registry of `dataset_dir` is left out."""
    root = known_folders.repository_root(run.workspace.recipe)
    own = safe_read.real_path(run.data.registry.path) if run.data.registry else None
    found = (read_registry(folder / REGISTRY_FILE) for folder in (_registry_folders(root) if root else ()))
    return [each for each in found if safe_read.real_path(each.path) != own and names <= each.entries.keys()]


@cache
def _registry_folders(root: Path) -> tuple[Path, ...]:
    folders = safe_read.find_below(root, REGISTRY_FILE)
    return tuple(folder for folder, _ in zip(folders, range(_MAX_REGISTRIES), strict=False))
