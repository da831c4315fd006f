"""Places in what a recipe's keys hold or name: the DeepSpeed configuration, the data set registry, JSON settings."""

from __future__ import annotations

from pathlib import Path

from validator.diagnostic import Place
from validator.job.datasets import Dataset
from validator.job.job import Job

REGISTRY = "dataset_info.json"


def deepspeed(job: Job, *route: str | int, at_key: bool = False, against: tuple[str, ...] = ()) -> Place:
    """A place in the DeepSpeed configuration: a JSON file, or a mapping or JSON text in the recipe."""
    return _held(job, "deepspeed", route, at_key, against)


def settings(job: Job, key: str, *route: str | int, at_key: bool = False) -> Place:
    """A place in the settings that a key such as `fsdp_config` holds, or in the JSON file that it names."""
    return _held(job, key, route, at_key)


def entry(key: str, dataset: Dataset, *route: str | int, at_key: bool = False) -> Place:
    """A place in the registry entry of a data set that `key` names."""
    return Place((dataset.name, *route), str(dataset.folder / REGISTRY), key, at_key)


def item(job: Job, key: str, name: str) -> Place:
    """One of several names that a key lists."""
    value = job.get(key)
    names = [str(word) for word in value] if isinstance(value, list) else []
    return Place((key, names.index(name)) if name in names else (key,), key=key)


def _held(
    job: Job, key: str, route: tuple[str | int, ...], at_key: bool = False, against: tuple[str, ...] = ()
) -> Place:
    value = job.get(key)
    if not isinstance(value, str):
        return Place((key, *route), key=key, at_key=at_key, against=against)
    location = None if value.startswith("{") else job.find(value)
    if location is None or not Path(location[0]).is_file():
        return Place((key,), key=key)
    return Place(route, str(location[0]), key, at_key, against)
