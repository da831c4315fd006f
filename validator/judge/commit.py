"""What a commit asks to be checked: of its files those that are ours, and the recipes that read one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from validator.job.datasets import REGISTRY
from validator.job.job import resolve
from validator.judge import recognition
from validator.read.recipe import load


def subjects(paths: Sequence[str]) -> list[str]:
    """The recipes and DeepSpeed files among the paths, then the recipes in the working directory that read a DeepSpeed
    file or data set registry among them."""
    ours = [path for path in paths if recognition.recognised(path)]
    read = [path for path in paths if Path(path).name == REGISTRY or (path.endswith(".json") and path in ours)]
    known = {Path(path).resolve() for path in ours}
    return ours + [path for path in _readers(read) if Path(path).resolve() not in known]


def _readers(paths: Iterable[str]) -> Iterator[str]:
    changed = {Path(path).resolve() for path in paths}
    for path in recognition.inside(".") if changed else ():
        if not path.endswith(".json") and changed & set(_reads(path)):
            yield path


def _reads(recipe: str) -> Iterator[Path]:
    """The files beside a recipe that decide what it does."""
    job = resolve(load(recipe))
    if job.zero and job.zero.path:
        yield Path(job.zero.path).resolve()
    if job.registry:
        yield job.registry.path.resolve()
