"""Recipes and DeepSpeed files among other files: recognised by what they hold, whatever they are called."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.read.recipe import SUFFIXES
from validator.read.text import read_bytes

_SUFFIXES = (*SUFFIXES, ".json")
_MAX_BYTES = 1 << 20
# Looked for in bytes, so that a recipe that is not UTF-8, or no YAML any more, is recognised and told so.
_HEADER = re.compile(rb"(?m)^# /// recipe[ \t\r]*$")
_KEY = re.compile(
    rb"""(?mx) ^["']? ( model_name_or_path | do_train | dataset | finetuning_type | template | cutoff_len
         | stage (?= ["']? [ \t]* : [ \t]* ["']? (?:pt|sft|rm|ppo|dpo|kto) \b) ) ["']? [ \t]* :"""
)
# With any one of each, a file is for LLaMA-Factory, and for training: not for chat, export or another trainer.
_OWN, _TRAINS = {b"finetuning_type", b"template", b"cutoff_len", b"stage"}, {b"stage", b"do_train", b"dataset"}
_ENOUGH = 3
_ENGINE = re.compile(rb'(?<!\\)"zero_optimization"\s*:')
_INSTALLED = "pyvenv.cfg"
_PASSED_BY = ("node_modules", "venv", "site-packages", "checkpoints")


class _Listed(NamedTuple):
    """Files and folders in a folder, and whether it is a virtual environment."""

    files: list[str]
    folders: list[str]
    installed: bool


def recognised(path: str) -> bool:
    """Whether the file is a recipe or a DeepSpeed file; one that cannot be read is neither."""
    try:
        data = read_bytes(path)[:_MAX_BYTES]
    except RecipeError:
        return False
    return _is_engine(data) if path.endswith(".json") else _is_recipe(data)


def inside(folder: str, closed: Callable[[str, OSError], object] = lambda _folder, _err: None) -> list[str]:
    """The recipes and DeepSpeed files in a folder and those below it, in order; links to folders are not followed.
    `closed` is told of each folder that cannot be listed."""
    files, below = list[str](), [folder]
    while below:
        place = below.pop()
        try:
            listed = _listed(place)
        except OSError as err:
            closed(str(Path(place)), err)
            continue
        if not listed.installed or place == folder:
            files += listed.files
            below += listed.folders
    return [path for path in sorted(files) if recognised(path)]


def _listed(folder: str) -> _Listed:
    """What a folder holds that may be ours, by its name: among a million files none is looked at that is called
    otherwise. Raises OSError."""
    files, folders, installed = [], [], False
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not _passed_by(entry.name):
                    folders.append(entry.path)
            elif entry.name.endswith(_SUFFIXES) and _is_file(entry):
                files.append(str(Path(entry.path)))
            elif entry.name == _INSTALLED:
                installed = True
    return _Listed(files, folders, installed)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to one: not to a name that is too long, to a pipe or to itself."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_recipe(data: bytes) -> bool:
    keys = set(_KEY.findall(data))
    return bool(_HEADER.search(data) or (len(keys) >= _ENOUGH and keys & _OWN and keys & _TRAINS))


def _is_engine(data: bytes) -> bool:
    """An object with ZeRO settings, or what is left of one that is no JSON any more."""
    if not _ENGINE.search(data):
        return False
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        return True
    return isinstance(config, dict) and "zero_optimization" in config


def _passed_by(name: str) -> bool:
    """Folders that are hidden, installed, or left by a run."""
    return name.startswith((".", "checkpoint-")) or name in _PASSED_BY
