"""The data sets that LLaMA-Factory would open, for the rules about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from validator.diagnostic import Place
from validator.job.datasets import REGISTRY, Dataset
from validator.job.job import Job

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


def meant(dataset: Dataset) -> str:
    """The `formatting` that the first rows ask for; empty where that cannot be told."""
    from validator.samples.guess import UnknownFormError, guess  # which an entry without a fault does not need

    with suppress(UnknownFormError):
        return str(guess(_head(dataset)).entry.get("formatting", "alpaca"))
    return ""


def unknown(dataset: Dataset) -> str:
    """What the first rows would need, where no entry describes them."""
    from validator.samples.guess import UnknownFormError, guess

    try:
        guess(_head(dataset))
    except UnknownFormError as err:
        return str(err)
    return ""


def remedied(job: Job, dataset: Dataset, otherwise: str = "") -> str:
    """`; ` and what to write for the rows that the data set holds; `otherwise` where that cannot be told."""
    from validator.samples.remedy import remedy  # which an entry without a fault does not need

    what = remedy(dataset.name, dataset.entry, job.stage, _head(dataset)) or otherwise
    return f"; {what}" if what else ""


def _head(dataset: Dataset) -> Sequence[Mapping[str, Any]]:
    return dataset.rows.head if dataset.rows and not dataset.rows.problem else ()


def _entry(
    job: Job, key: str, dataset: Dataset, *route: str | int, at_key: bool = False, against: tuple[str, ...] = ()
) -> Place:
    """A place in the registry entry of a data set that `key` names; what is said of it may quote its rows."""
    rows = next((str(file) for file in dataset.files if not job.quotes(file)), None)
    if isinstance(job.get("dataset_dir"), Mapping):
        return Place(("dataset_dir", dataset.name, *route), None, key, at_key, against, rows)
    return Place((dataset.name, *route), str(dataset.folder / REGISTRY), key, at_key, against, rows)
