"""Recipes and DeepSpeed files among other files: recognised by what they hold, whatever they are called."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from validator.read.recipe import SUFFIXES

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
_PASSED_BY = ("node_modules", "venv", "site-packages", "checkpoints")


def recognised(path: str) -> bool:
    """Whether the file is a recipe or a DeepSpeed file; one that cannot be read is neither."""
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MAX_BYTES)
    except OSError:
        return False
    return _is_engine(data) if path.endswith(".json") else _is_recipe(data)


def inside(folder: str) -> list[str]:
    """The recipes and DeepSpeed files in a folder and those below it, in order; links to folders are not followed.
    Nothing is raised for what cannot be listed."""
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _passed_by(Path(place, name))]
        files += [path for name in names if name.endswith(_SUFFIXES) and (path := Path(place, name)).is_file()]
    return [path for path in sorted(map(str, files)) if recognised(path)]


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


def _passed_by(folder: Path) -> bool:
    """What is hidden, installed, or a run has left."""
    name = folder.name
    return name.startswith((".", "checkpoint-")) or name in _PASSED_BY or (folder / "pyvenv.cfg").is_file()
