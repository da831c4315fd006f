"""Which files a check may quote: those of the repository that it is asked about, and our own.

A recipe may name any path, also one outside of the repository that it came with, and a file of the repository may be a
link. Who changes a recipe on a pull request is to learn of such a file whether it is there and sound, not what is in
it."""

# Annotations are not postponed, as memory/workload.py says: each start would pay for it.

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from validator.read import disk
from validator.tables.checkout import home

_GIT = ".git"  # whose config may hold a token


def holds(path: str | Path, asked: str) -> bool:
    """Whether a file, links followed, lies in a repository that the check of `asked` is about, and is not git's own."""
    real = Path(os.path.realpath(path))
    return _GIT not in real.parts and any(real.is_relative_to(root) for root in _roots(asked))


def _roots(asked: str) -> Iterator[Path]:
    """The repository of the working folder, what an installation brings, and the repository of a file elsewhere that is
    asked about by its path. A link that leads out of the working folder does not ask for what is there."""
    here = Path.cwd()
    yield from _around(here)
    yield Path(os.path.realpath(home()))
    path = Path(os.path.normpath(here / asked))
    if asked != "-" and not path.is_relative_to(here):
        yield from _around(path.parent)


@cache
def _around(folder: Path) -> tuple[Path, ...]:
    """The nearest folder around this one that git knows, else this one; but not all of the file system."""
    real = Path(os.path.realpath(folder))
    root = next((each for each in (real, *real.parents) if disk.kind(each / _GIT)), real)
    return (root,) if root != root.parent else ()
