"""The data sets that LLaMA-Factory would open, for the rules about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from validator.diagnostic import Place
from validator.job.datasets import Dataset
from validator.job.job import Job

_REGISTRY = "dataset_info.json"
# Gives the place of a route into the data set's entry.
At = Callable[..., Place]


def sets(job: Job) -> Iterator[tuple[At, Dataset]]:
    """Each data set that is named and defined, with what gives places in its entry: `at("columns", "prompt")`."""
    if job.registry is None or job.tokenized:
        return
    for key in ("dataset", "eval_dataset"):
        for name in dict.fromkeys(job.words(key)):
            dataset = job.registry.get(name)
            if dataset:
                yield partial(_entry, job, key, dataset), dataset


def _entry(
    job: Job, key: str, dataset: Dataset, *route: str | int, at_key: bool = False, against: tuple[str, ...] = ()
) -> Place:
    """A place in the registry entry of a data set that `key` names."""
    if isinstance(job.get("dataset_dir"), Mapping):
        return Place(("dataset_dir", dataset.name, *route), None, key, at_key, against)
    return Place((dataset.name, *route), str(dataset.folder / _REGISTRY), key, at_key, against)
