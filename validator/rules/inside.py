"""Places in what a recipe's keys hold or name: the DeepSpeed configuration, other settings in JSON, lists."""

from __future__ import annotations

from pathlib import Path

from validator.diagnostic import Place
from validator.job import resumption
from validator.job.job import Job
from validator.read import disk


def deepspeed(job: Job, *route: str | int, at_key: bool = False, against: tuple[str, ...] = ()) -> Place:
    """A place in the DeepSpeed configuration: a JSON file, or a mapping or JSON text in the recipe."""
    return settings(job, "deepspeed", *route, at_key=at_key, against=against)


def accelerate(job: Job, *route: str | int, at_key: bool = False, against: tuple[str, ...] = ()) -> Place:
    """A place in the accelerate file that the header block names; the header's field where there is no such file."""
    file = job.accelerate
    if file is None or disk.kind(Path(file.path)) != "file":
        return Place(("accelerate",), key="accelerate")
    return Place(route, file.path, "accelerate", at_key, against)


def fsdp(job: Job, name: str) -> Place:
    """A setting of FSDP in the accelerate file, by the name that is written there, or one of the file's own keys."""
    file = job.accelerate
    if file is None or name in file.config:
        return accelerate(job, name)
    return accelerate(job, "fsdp_config", file.written.get(name, name))


def settings(job: Job, key: str, *route: str | int, at_key: bool = False, against: tuple[str, ...] = ()) -> Place:
    """A place in the settings that a key such as `fsdp_config` holds, or in the JSON file that it names."""
    value = job.get(key)
    if not isinstance(value, str):
        return Place((key, *route), None, key, at_key, against)
    location = None if value.startswith("{") else job.find(value)
    if location is None or disk.kind(location[0]) != "file":
        return Place((key,), key=key, against=against)
    return Place(route, str(location[0]), key, at_key, against)


def checkpoint(job: Job, key: str) -> Place:
    """A key that names a checkpoint; what is said of it may quote the small files in it."""
    folders = (saved.path for saved in resumption.chosen(job))
    hidden = (str(file) for folder in folders for file in disk.matching(folder, "*.json") if not job.quotes(file))
    return Place((key,), key=key, tells=next(hidden, None))


def item(job: Job, key: str, name: str) -> Place:
    """One of several names that a key lists."""
    value = job.get(key)
    names = [str(word) for word in value] if isinstance(value, list) else []
    return Place((key, names.index(name)) if name in names else (key,), key=key)
