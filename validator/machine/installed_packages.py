"""Python packages that a run would import, read from their metadata and files without importing any, and whether a
release lies in a PEP 440 range."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution


class InstalledPackages:
    """What lies in these folders of packages; the first of a name is the one that Python imports."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = [Path(folder) for folder in folders if folder]

    @cached_property
    def _all(self) -> Mapping[str, Distribution]:
        from importlib.metadata import distributions

        there: dict[str, Distribution] = {}
        for one in distributions(path=[str(folder) for folder in self._folders]):
            if one.metadata["Name"]:
                there.setdefault(normalize_name(one.metadata["Name"]), one)
        return there

    @cached_property
    def releases(self) -> Mapping[str, str]:
        """Releases by package, in the spelling of `normal`."""
        return {name: one.version for name, one in self._all.items()}

    def among(self, names: Iterable[str]) -> dict[str, str]:
        """Releases of those of these packages that are there, as they are named; others are not read."""
        from importlib.metadata import distributions

        places = [str(folder) for folder in self._folders]
        first = {name: next(iter(distributions(name=name, path=places)), None) for name in names}
        return {name: one.version for name, one in first.items() if one}

    def requirements(self, name: str) -> list[str]:
        """What a package asks of others, as its metadata write it; nothing where it is not there."""
        return list(self._all[name].requires or []) if name in self._all else []

    def origin(self, name: str) -> str:
        """The address that a package was installed from; empty where it came from an index (PEP 610)."""
        from urllib.parse import unquote

        text = self._all[name].read_text("direct_url.json") if name in self._all else None
        return unquote(str(json.loads(text).get("url", ""))) if text else ""

    @cached_property
    def _places(self) -> list[Path]:
        """The folders, and those of packages that are used where their source lies (`pip install -e`)."""
        roots = (
            Path(path) for name in self._all if (path := self.origin(name).removeprefix("file://")).startswith("/")
        )
        return [*self._folders, *(place for root in roots for place in (root / "src", root))]

    def text(self, path: str) -> str:
        """A file of a package; empty where there is none."""
        place = next((folder / path for folder in self._places if (folder / path).is_file()), None)
        return place.read_text("utf-8", errors="replace") if place else ""

    def files(self, pattern: str) -> list[Path]:
        """Files of the first folder that holds any of this pattern."""
        return next((files for folder in self._folders if (files := sorted(folder.glob(pattern)))), [])

    def has_module(self, name: str) -> bool:
        """Whether a module of this name lies there, of whatever package."""
        return bool(self.files(f"{name}/__init__.py") or self.files(f"{name}.py"))


def normalize_name(name: str) -> str:
    """The one spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def find_installed(folders: tuple[str, ...] | None = None) -> InstalledPackages:
    """The packages of these folders; by default those of the Python that llamafactory-cli runs with, which need not be
    this one; where there is no such program, of this one."""
    return InstalledPackages(folders or _folders_of_program(shutil.which("llamafactory-cli")) or tuple(sys.path))


def _folders_of_program(path: str | None) -> tuple[str, ...]:
    """The folders of packages of the Python that a script begins with."""
    if path is None:
        return ()
    with Path(path).open("rb") as script:
        first = script.readline().decode(errors="replace").strip()
    python = first.removeprefix("#!")
    if python == first or python == sys.executable or not Path(python).name.startswith("python"):
        return ()
    root = Path(python).parent.parent
    return tuple(str(folder) for name in ("site-packages", "dist-packages")
                 for folder in sorted(root.glob(f"lib*/python3*/{name}")))  # fmt: skip


def has_packaging() -> bool:
    """Whether `packaging` is here, which comes with transformers; without it nothing else of this module is called."""
    return find_spec("packaging") is not None


def satisfies_range(wanted: str, release: str) -> bool:
    """Whether a range holds a release, one before a release included; true where either cannot be read."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(wanted).contains(Version(release), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def parse_requirements(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names and ranges of the requirements that hold in this Python, extras left out."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in texts:
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one.name, str(one.specifier)
