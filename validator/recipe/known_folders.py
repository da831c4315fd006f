"""Places of files: the folder with recipes/, deepspeed/, accelerate/ and data/, the user's own folders, and the folders
from which a relative path in a recipe may be meant.

Also which files a check may quote: those of the repository that it is asked about, and our own. A recipe may name any
path, and a file of the repository may be a link. Whoever changes a recipe in a pull request may learn whether a file
elsewhere exists and is sound, but not what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from validator.recipe import safe_read
from validator.recipe.safe_read import expand_home


def catalogue_root() -> Path:
    """Return the folder that holds recipes/, deepspeed/, accelerate/ and data/: the checkout, or their copy beside an
    installed package."""
    root = Path(__file__).parent.parent.parent
    return root if (root / "recipes").is_dir() else root / "llamafactory_recipes"


def user_folder(variable: str, usual: str) -> Path | None:
    """Return the folder for a kind of files: the one that the variable names, else the usual one in the home; None
    without a home. A relative path in the variable is ignored (XDG Base Directory Specification)."""
    given = expand_home(os.environ.get(variable, ""))
    folder = given if given.is_absolute() else expand_home("~") / usual
    return folder if folder.is_absolute() else None


def search_folders(path: str) -> Iterator[Path]:
    """Yield the working directory, then the recipe's folder and those above it: the folders from which relative paths
    may be meant."""
    here = Path.cwd()
    yield here
    if path != "-":
        for folder in Path(path).absolute().parents:
            if folder != here:
                yield folder


_GIT_FOLDER = ".git"  # whose config may hold a token


def is_in_repository(path: str | Path, asked: str) -> bool:
    """True if a file, links followed, lies in a repository that the check of `asked` is about, and is not git's own."""
    real = Path(os.path.realpath(path))
    return _GIT_FOLDER not in real.parts and any(real.is_relative_to(root) for root in _repository_roots(asked))


def _repository_roots(asked: str) -> Iterator[Path]:
    """Yield the repository of the working folder, the folder of the installation, and the repository of a file
    elsewhere that is checked by its path. A link that leads out of the working folder does not count as checked by its
    path."""
    here = Path.cwd()
    yield from _repository_around(here)
    yield Path(os.path.realpath(catalogue_root()))
    path = Path(os.path.normpath(here / asked))
    if asked != "-" and not path.is_relative_to(here):
        yield from _repository_around(path.parent)


@cache
def _repository_around(folder: Path) -> tuple[Path, ...]:
    """Return the nearest folder around this one that git knows, else this one; empty if that is the root of the file
    system."""
    real = Path(os.path.realpath(folder))
    root = next((each for each in (real, *real.parents) if safe_read.path_kind(each / _GIT_FOLDER)), real)
    return (root,) if root != root.parent else ()
