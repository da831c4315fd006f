"""Finds the files that are judged (recipes, DeepSpeed files, Accelerate files, data set registries) among other files,
in a folder or in a commit, by what they hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from validator.knowledge import file_kinds
from validator.recipe import safe_read
from validator.recipe.recipe_file import RECIPE_SUFFIXES, load_recipe
from validator.run.dataset_registry import REGISTRY_FILE
from validator.run.settings import resolve

_OUR_SUFFIXES = (*RECIPE_SUFFIXES, ".json")
_VENV_FILE = "pyvenv.cfg"
_SKIPPED_FOLDERS = ("node_modules", "venv", "site-packages", "checkpoints")


def is_ours(path: str) -> bool:
    """True if the file is of a kind that is judged, whatever its name; False if it cannot be read."""
    return file_kinds.kind_of_file(path).is_judged


def find_in_folder(folder: str, closed: Callable[[str, OSError], object] = lambda _folder, _err: None) -> list[str]:
    """Return the files in a folder and its subfolders that are judged, sorted. Links to folders are not followed.
    If a folder cannot be listed, `closed` is called with its path and the error."""
    files, folders_left = list[str](), [folder]
    while folders_left:
        place = folders_left.pop()
        try:
            folder_files, folders = _list_folder(place, asked=place == folder)
        except OSError as err:
            closed(str(Path(place)), err)
            continue
        files += folder_files
        folders_left += folders
    return [path for path in sorted(files) if is_ours(path)]


def _list_folder(folder: str, asked: bool) -> tuple[list[str], list[str]]:
    """Return two lists: the files in a folder whose suffix is that of a file that is judged, and the subfolders to
    search. Files with other suffixes are not inspected, because a folder may hold a million of them. `asked`: True for
    the folder that the user named; any other folder that is a virtual environment is skipped. Raises OSError if the
    folder cannot be listed."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                hidden_or_of_a_run = entry.name.startswith((".", "checkpoint-"))
                if not hidden_or_of_a_run and entry.name not in _SKIPPED_FOLDERS:
                    folders.append(entry.path)
            elif entry.name.endswith(_OUR_SUFFIXES) and _is_file(entry):
                files.append(str(Path(entry.path)))
            elif entry.name == _VENV_FILE and not asked:
                return [], []
    return files, folders


def _is_file(entry: os.DirEntry[str]) -> bool:
    """True if the entry is a file or a link to a file; False for a pipe, and for a link to itself or to a name that is
    too long."""
    try:
        return entry.is_file()
    except OSError:
        return False


def files_to_check(paths: Sequence[str]) -> list[str]:
    """Return the folders, and the files that are judged, among the paths. After them, the recipes in the working
    directory that read one of these files."""
    kinds = {path: file_kinds.kind_of_file(path) for path in paths}
    ours = [path for path, kind in kinds.items() if kind.is_judged or safe_read.path_kind(path) == "folder"]
    # A registry that is broken or empty is recognised by nothing but its name.
    read = [path for path in paths if Path(path).name == REGISTRY_FILE or kinds[path].is_read_by_recipes]
    checked_paths = {safe_read.real_path(path) for path in ours}
    return ours + [path for path in _recipes_reading(read) if safe_read.real_path(path) not in checked_paths]


def _recipes_reading(paths: Iterable[str]) -> Iterator[str]:
    """Yield the recipes in the working directory that use one of these files, as their DeepSpeed file, their Accelerate
    file or their dataset_info.json; and those that name a missing file of such a kind, which may have been moved."""
    changed = {safe_read.real_path(path): file_kinds.kind_of_file(path).name for path in paths}
    for path in find_in_folder(".") if changed else ():
        if file_kinds.kind_of_file(path).name == file_kinds.RECIPE:
            run = resolve(load_recipe(path))
            named = {
                file_kinds.DEEPSPEED: run.args.get("deepspeed"),
                file_kinds.ACCELERATE: run.header.get("accelerate"),
                file_kinds.REGISTRY: run.data.registry and run.data.registry.path,
            }
            places = {
                kind: run.workspace.find(str(file)) for kind, file in named.items() if isinstance(file, (str, Path))
            }
            moved = (kind in changed.values() for kind, place in places.items() if place is None)
            if any(place and safe_read.real_path(place[0]) in changed for place in places.values()) or any(moved):
                yield path
