"""Released packages as syntax trees: fetch, unpack in memory, parse. Nothing is imported or run."""

import ast
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

ModuleTrees = Callable[[str], ast.Module]
Files = Mapping[str, bytes]


def download(package: str, release: str, folder: Path) -> Path:
    """The archive of a released package, downloaded into a folder of its own in `folder` unless it lies there."""
    target = folder / f"{package}-{release}"
    target.mkdir(parents=True, exist_ok=True)
    if not any(target.iterdir()):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(target)]
        subprocess.run([*command, f"{package}=={release}"], check=True, stdout=sys.stderr)
    return next(target.iterdir())


def files(place: Path, package: str) -> Files:
    """The Python files of a package by their path in it, `package/file.py`, from a wheel, an sdist or a folder."""
    unpacked = _folder if place.is_dir() else _wheel if place.suffix == ".whl" else _sdist
    inside = ((name.removeprefix("src/"), text) for name, text in unpacked(place, package))
    return {name: text for name, text in inside if name.startswith(f"{package}/") and name.endswith(".py")}


def _folder(place: Path, package: str) -> Iterator[tuple[str, bytes]]:
    for path in [*place.glob(f"{package}/**/*.py"), *place.glob(f"src/{package}/**/*.py")]:
        yield path.relative_to(place).as_posix(), path.read_bytes()


def _wheel(place: Path, package: str) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(place) as wheel:
        for name in wheel.namelist():
            if name.startswith(f"{package}/"):
                yield name, wheel.read(name)


def _sdist(place: Path, package: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(place) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content and package in (path := PurePosixPath(member.name)).parts[1:3]:
                yield str(path.relative_to(path.parts[0])), content.read()


def module_trees(package: Files) -> ModuleTrees:
    """Return a function from a dotted module name to its syntax tree. Raises KeyError for a module it has not."""
    return cache(lambda name: ast.parse(package[name.replace(".", "/") + ".py"]))


def classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    """Top-level classes of a module by name."""
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def name_of(node: ast.expr) -> str:
    """Last part of a dotted name: `Optional` for `typing.Optional`; empty when the node is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def members(node: ast.ClassDef) -> dict[str, str]:
    """Members of an enumeration whose values are texts."""
    return {
        target.id: statement.value.value
        for statement in node.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name) and isinstance(statement.value.value, str)
    }
