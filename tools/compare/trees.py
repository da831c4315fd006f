"""The two trees that are compared, laid out side by side from git and from the working tree, and named by content."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import NamedTuple

# What no answer depends on: these folders, and files at the top other than pyproject.toml.
_ASIDE = ("tests", "docs", "benchmarks", "tools", "release", "scripts", ".ci", ".github")


class NoHistoryError(Exception):
    """Git, or the commit to compare with, is not here."""


class Tree(NamedTuple):
    """The program as it was at a commit, or as it is in the working tree. `name` is what people call it, `content` a
    hash over every file that an answer may depend on."""

    name: str
    content: str
    folder: Path


class EntryPoint(NamedTuple):
    """The console program that a pyproject.toml names: `function` of `module`."""

    program: str
    module: str
    function: str


def base(root: Path, commit: str | None, build: Path) -> Tree:
    """Lay out the tree of the commit. Without one: the last commit where the working tree has changes, else the commit
    before it. Raises NoHistoryError."""
    commit = commit or ("HEAD" if _git(root, "status", "--porcelain", "--untracked-files=normal") else "HEAD~1")
    sha = _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(_git(root, "archive", "--format=tar", sha))) as archive:
        for member in archive:
            if member.isfile() and _counts(member.name):
                files[member.name] = archive.extractfile(member).read()  # type: ignore[union-attr]
    return _laid_out(f"{sha[:10]} ({commit})" if not sha.startswith(commit) else sha[:10], files, build)


def working(root: Path, build: Path) -> Tree:
    """Lay out a copy of the working tree, which may be edited while its copy is asked."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
    files = {name: (root / name).read_bytes() for name in listed if name and _counts(name) and (root / name).is_file()}
    return _laid_out("the working tree", files, build)


def entry_point(folder: Path) -> EntryPoint:
    """The first console program of the tree."""
    program, place = next(iter(_scripts((folder / "pyproject.toml").read_bytes()).items()))
    module, _, function = place.partition(":")
    return EntryPoint(program, module, function)


def _scripts(pyproject: bytes) -> dict[str, str]:
    scripts: dict[str, str] = tomllib.loads(pyproject.decode())["project"]["scripts"]
    return scripts


class Finder:
    """Lets one package be imported from a tree whose root stays off sys.path: there deepspeed/ and data/ would pass for
    packages. It comes before an editable installation of another tree."""

    def __init__(self, folder: Path) -> None:
        self.package = entry_point(folder).module.partition(".")[0]
        self.place = next(
            (place / self.package for place in (folder, folder / "src") if (place / self.package).is_dir()),
            folder / self.package,
        )

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Where the package lies; None for every other one, and for what is inside it."""
        if name != self.package:
            return None
        return spec_from_file_location(name, self.place / "__init__.py", submodule_search_locations=[str(self.place)])


def digest(files: Mapping[str, bytes]) -> str:
    """A hash over names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return total.hexdigest()[:16]


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files; a name that ends in / is an empty folder."""
    for name, content in files.items():
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(content)
            if content.startswith(b"#!"):
                path.chmod(0o755)


def lay_out(files: Mapping[str, bytes], folder: Path) -> Path:
    """Write the files to a folder that is there whole or not at all."""
    if folder.exists():
        os.utime(folder)  # `tidy` takes those away that are longest out of use
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(dir=folder.parent, prefix="half-"))
        write(files, half)
        half.rename(folder)
    return folder


def tidy(build: Path, keep: int = 8) -> None:
    """Remove trees, catalogues and answers but for those used last."""
    for folder in ("trees", "catalogues", "answers"):
        for path in sorted((build / folder).iterdir(), key=lambda path: path.stat().st_mtime)[:-keep]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _laid_out(name: str, files: Mapping[str, bytes], build: Path) -> Tree:
    # Of pyproject.toml, answers depend on what names the program alone.
    named = {name: content for name, content in files.items() if name != "pyproject.toml"}
    content = digest({**named, "program": repr(_scripts(files["pyproject.toml"])).encode()})
    return Tree(name, content, lay_out(files, build / "trees" / content))


def _counts(name: str) -> bool:
    top, _, rest = name.partition("/")
    return name == "pyproject.toml" or bool(rest and top not in _ASIDE)


def _git(root: Path, *words: str) -> bytes:
    try:
        return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise NoHistoryError("git is not installed, so there is no commit to compare with") from None
    except subprocess.CalledProcessError as err:
        said = err.stderr.decode(errors="replace").strip().splitlines()
        why = said[0] if said else f"`{words[-1].removesuffix('^{commit}')}` is no commit of this repository"
        raise NoHistoryError(f"there is no commit to compare with: {why}") from None
