"""Finds recipes and DeepSpeed files among other files, in a folder or in a commit, by their contents."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from validator.errors import RecipeError
from validator.recipe.recipe_file import RECIPE_SUFFIXES, load_recipe
from validator.recipe.safe_read import read_bytes
from validator.run.dataset_registry import REGISTRY_FILE
from validator.run.settings import resolve

_OUR_SUFFIXES = (*RECIPE_SUFFIXES, ".json")
_MAX_BYTES = 1 << 20
# Looked for in bytes, so that a recipe that is not UTF-8, or no YAML any more, is recognized and reported.
_HEADER_START = re.compile(rb"(?m)^# /// recipe[ \t\r]*$")
_RECIPE_KEY = re.compile(
    rb"""(?mx) ^["']? ( model_name_or_path | do_train | dataset | finetuning_type | template | cutoff_len
         | stage (?= ["']? [ \t]* : [ \t]* ["']? (?:pt|sft|rm|ppo|dpo|kto) \b) ) ["']? [ \t]* :"""
)
# With any one of each, a file is for LLaMA-Factory, and for training: not for chat, export or another trainer.
_LLAMAFACTORY_KEYS, _TRAINING_KEYS = (
    {b"finetuning_type", b"template", b"cutoff_len", b"stage"},
    {b"stage", b"do_train", b"dataset"},
)
_MIN_KEYS = 3
_ZERO_SETTINGS = re.compile(rb'(?<!\\)"zero_optimization"\s*:')
_VENV_FILE = "pyvenv.cfg"
_SKIPPED_FOLDERS = ("node_modules", "venv", "site-packages", "checkpoints")


def is_ours(path: str) -> bool:
    """True if the file is a recipe or a DeepSpeed file; False if it cannot be read."""
    try:
        data = read_bytes(path)[:_MAX_BYTES]
    except RecipeError:
        return False
    return _is_deepspeed_file(data) if path.endswith(".json") else _is_recipe(data)


def find_in_folder(folder: str, closed: Callable[[str, OSError], object] = lambda _folder, _err: None) -> list[str]:
    """Return the recipes and DeepSpeed files in a folder and its subfolders, sorted. Links to folders are not followed.
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
    """Return two lists: the files in a folder whose suffix is that of a recipe or DeepSpeed file, and the subfolders to
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


def _is_recipe(data: bytes) -> bool:
    keys = set(_RECIPE_KEY.findall(data))
    used = len(keys) >= _MIN_KEYS and keys & _LLAMAFACTORY_KEYS and keys & _TRAINING_KEYS
    return bool(used or _HEADER_START.search(data))


def _is_deepspeed_file(data: bytes) -> bool:
    """True if the data are a JSON object with ZeRO settings, or invalid JSON that contains such settings."""
    if not _ZERO_SETTINGS.search(data):
        return False
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        return True
    return isinstance(config, dict) and "zero_optimization" in config


def files_to_check(paths: Sequence[str]) -> list[str]:
    """Return the recipes and DeepSpeed files among the paths. After them, the recipes in the working directory that
    read one of the paths as their DeepSpeed file or their dataset_info.json."""
    ours = [path for path in paths if is_ours(path)]
    read = [path for path in paths if Path(path).name == REGISTRY_FILE or (path.endswith(".json") and path in ours)]
    checked_paths = {Path(path).resolve() for path in ours}
    return ours + [path for path in _recipes_reading(read) if Path(path).resolve() not in checked_paths]


def _recipes_reading(paths: Iterable[str]) -> Iterator[str]:
    """Yield the recipes in the working directory that use one of these files, as their DeepSpeed file or as their
    dataset_info.json."""
    changed = {Path(path).resolve() for path in paths}
    for path in find_in_folder(".") if changed else ():
        if not path.endswith(".json"):
            run = resolve(load_recipe(path))
            read = [
                run.deepspeed.path if run.deepspeed else None,
                run.data.registry.path if run.data.registry else None,
            ]
            if any(Path(each).resolve() in changed for each in read if each):
                yield path
