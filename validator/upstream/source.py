"""Released packages as syntax trees: download, unpack in memory, parse. Nothing is imported or run."""

import ast
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath

Modules = Callable[[str], ast.Module]


def download(requirement: str, folder: Path) -> Path:
    """Fetch one released package, such as `llamafactory==0.9.5`, and return its archive."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), requirement]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return next(folder.iterdir())


def modules(archive: Path) -> Modules:
    """Return a function from a dotted module name to its syntax tree."""
    read = _wheel(archive) if archive.suffix == ".whl" else _sdist(archive)
    return cache(lambda name: ast.parse(read(name.replace(".", "/") + ".py")))


def _wheel(archive: Path) -> Callable[[str], bytes]:
    return zipfile.ZipFile(archive).read


def _sdist(archive: Path) -> Callable[[str], bytes]:
    with tarfile.open(archive) as tar:
        files = {
            str(PurePosixPath(*PurePosixPath(member.name).parts[1:])): member.name
            for member in tar.getmembers()
            if member.name.endswith(".py")
        }
        sources = {path: tar.extractfile(name).read() for path, name in files.items()}  # type: ignore[union-attr]
    return sources.__getitem__


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
