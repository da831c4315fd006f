"""Where files lie: the folder of the catalogue (recipes/, deepspeed/, accelerate/ and data/), the user's own folders,
and the folders in which a recipe's relative paths are looked for.

Also which files the messages of `check` may quote: those of the repository that is checked, and this package's own. A
recipe may name any path, and a file of the repository may be a link. Whoever changes a recipe in a pull request may
learn whether a file elsewhere exists and is valid, but not what it contains."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from validator.errors import RecipeError
from validator.recipe import safe_read
from validator.recipe.safe_read import expand_home


def catalogue_root() -> Path:
    """Return the folder that holds recipes/, deepspeed/, accelerate/ and data/: the checkout, or the copy beside an
    installed package."""
    root = Path(__file__).parent.parent.parent
    return root if (root / "recipes").is_dir() else root / "llamafactory_recipes"


def user_folder(variable: str, usual: str) -> Path | None:
    """Return the user's folder for a kind of files, such as data: the value of the environment variable, or else the
    folder `usual` in the home folder. None if there is no home folder. A relative path in the variable is ignored (XDG
    Base Directory Specification)."""
    named_folder = expand_home(os.environ.get(variable, ""))
    folder = named_folder if named_folder.is_absolute() else expand_home("~") / usual
    return folder if folder.is_absolute() else None


def search_folders(path: str) -> Iterator[Path]:
    """Yield the folders in which the relative paths of the recipe at `path` are looked for, the first that has a path
    before the others. `path` `-` stands for standard input, which has no folder.

    LLaMA-Factory looks in the working directory alone. A recipe below it is started from there, so the working
    directory comes first, then the recipe's own folder and its parents. A recipe that lies elsewhere belongs to the
    files beside it: its own folder and parents come before the working directory, but for the folders that both lie
    in."""
    cwd, file = Path.cwd(), Path(path).absolute()
    file = safe_read.real_path(file) if ".." in file.parts else file
    parents = file.parents if path != "-" else ()
    own = [] if cwd in parents else [folder for folder in parents if not cwd.is_relative_to(folder)]
    yield from (*own, cwd, *(folder for folder in parents if folder not in own and folder != cwd))


_GIT_FOLDER = ".git"  # whose config may hold a token


def is_in_repository(path: str | Path, asked: str) -> bool:
    """True if messages may quote a file: after following links, it lies in the repository that is checked or in this
    package's catalogue, and not in the folder .git. `asked`: the path that the user gave to `check`, which tells the
    repository."""
    real = Path(os.path.realpath(path))
    return _GIT_FOLDER not in real.parts and any(real.is_relative_to(root) for root in _repository_roots(asked))


def _repository_roots(checked_path: str) -> Iterator[Path]:
    """Yield the folders whose files may be quoted when `checked_path` is checked: the repository of the working
    directory, the catalogue and, if that path lies outside of the working directory, its repository. A link inside the
    working directory does not make its target quotable."""
    cwd = Path.cwd()
    yield from _repository_around(cwd)
    yield Path(os.path.realpath(catalogue_root()))
    path = Path(os.path.normpath(cwd / checked_path))
    if checked_path != "-" and not path.is_relative_to(cwd):
        yield from _repository_around(path.parent)


def repository_root(asked: str) -> Path | None:
    """Return the root of the repository that holds the recipe at the path `asked`; of one that lies in no repository,
    or comes from standard input, the working directory's, or else the working directory. None if that is the root of
    the file system."""
    cwd = Path.cwd()
    for folder in (Path(os.path.normpath(cwd / asked)).parent,) if asked != "-" else ():
        for root in _repository_around(folder):
            if root != Path(os.path.realpath(folder)) or safe_read.path_kind(root / _GIT_FOLDER):
                return root
    return next(iter(_repository_around(cwd)), None)


@cache
def _repository_around(folder: Path) -> tuple[Path, ...]:
    """Return the root of the git repository that contains the folder, or else the folder itself; empty if that would be
    the root of the file system."""
    real = Path(os.path.realpath(folder))
    root = next((each for each in (real, *real.parents) if safe_read.path_kind(each / _GIT_FOLDER)), real)
    return (root,) if root != root.parent else ()


_MAX_PATTERNS, _MAX_PARTS = 300, 30  # of one .gitignore; of a path from the root of the repository
_PATH_MAX = 4096  # letters of a path that Linux takes (limits.h); nothing lies at a longer one


def is_ignored_by_git(path: Path) -> bool:
    """True if a .gitignore of the repository ignores the absolute path or a folder above it. `**` in the middle of a
    pattern stands for one folder."""
    for root in _repository_around(path.parent) if len(str(path)) <= _PATH_MAX else ():
        depth = len(path.parts) - len(root.parts)
        if depth <= _MAX_PARTS and path.is_relative_to(root):
            return any(_is_ignored_itself(place, root) for place in (path, *path.parents)[:depth])
    return False


@cache
def _is_ignored_itself(path: Path, root: Path) -> bool:
    """True if the last pattern that matches the path ignores it, whatever is said of the folders above it."""
    ignored = False
    for folder in reversed([folder for folder in path.parents if folder.is_relative_to(root)]):
        parts = path.parts[len(folder.parts) :]
        for patterns, is_anchored, ignores in _ignored_patterns(folder):
            end = parts if is_anchored else parts[-len(patterns) :]
            if ignores != ignored and len(end) == len(patterns) and all(map(fnmatchcase, end, patterns)):
                ignored = ignores
    return ignored


@cache
def _ignored_patterns(folder: Path) -> list[tuple[list[str], bool, bool]]:
    """Return the patterns of the .gitignore in a folder: the patterns of a path's last parts, whether these are all
    parts from that folder on, and False for a pattern that begins with `!`. A link is not followed, as git does not."""
    file = folder / ".gitignore"
    if safe_read.path_kind(file) != "file" or file.is_symlink():
        return []
    try:
        lines = [line.strip() for line in safe_read.read_text(str(file)).splitlines()]
    except RecipeError:
        return []
    patterns = list[tuple[list[str], bool, bool]]()
    for line in [line for line in lines if line and not line.startswith("#")][:_MAX_PATTERNS]:
        pattern = line.removeprefix("!").rstrip("/")
        parts = [part for part in pattern.removeprefix("**/").split("/") if part]
        patterns.append((parts, "/" in pattern and not pattern.startswith("**/"), not line.startswith("!")))
    return patterns
