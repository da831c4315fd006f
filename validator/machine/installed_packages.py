"""Reads the Python packages that a run would import, from their metadata and files, without importing any of them. Also
tests whether a release lies in a PEP 440 range."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote


class InstalledPackages:
    """The packages in a list of site-packages folders. If two folders hold the same package, the first folder counts,
    as in Python's import."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = [Path(folder) for folder in folders if folder]

    @cached_property
    def _all(self) -> Mapping[str, Distribution]:
        packages: dict[str, Distribution] = {}
        for one in distributions(path=[str(folder) for folder in self._folders]):
            if one.metadata["Name"]:
                packages.setdefault(normalize_name(one.metadata["Name"]), one)
        return packages

    @cached_property
    def all_versions(self) -> Mapping[str, str]:
        """Installed version by package name, for all packages. Names are in the form that `normalize_name` returns."""
        return {name: one.version for name, one in self._all.items()}

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Return the installed version of each package in `names`. Packages that are not installed are left out. The
        metadata of other packages are not read, which saves time."""
        places = [str(folder) for folder in self._folders]
        first = {name: next(iter(distributions(name=name, path=places)), None) for name in names}
        return {name: one.version for name, one in first.items() if one}

    def requirements(self, name: str) -> list[str]:
        """Return the requirements in a package's metadata, such as `torch>=2.4`. The list is empty if the package is
        not installed."""
        return list(self._all[name].requires or []) if name in self._all else []

    def origin(self, name: str) -> str:
        """Return the URL that a package was installed from (PEP 610). The string is empty if the package came from an
        index such as PyPI, or is not installed."""
        text = self._all[name].read_text("direct_url.json") if name in self._all else None
        return unquote(str(json.loads(text).get("url", ""))) if text else ""

    @cached_property
    def _places(self) -> list[Path]:
        """The site-packages folders, and the source folders of packages installed by `pip install -e`."""
        origins = [self.origin(name).removeprefix("file://") for name in self._all]
        roots = [Path(origin) for origin in origins if origin.startswith("/")]
        return [*self._folders, *(place for root in roots for place in (root / "src", root))]

    def read_file(self, path: str) -> str:
        """Return the text of an installed file. `path` is relative to site-packages, such as `trl/__init__.py`. The
        text is empty if the file is missing."""
        place = next((folder / path for folder in self._places if (folder / path).is_file()), None)
        return place.read_text("utf-8", errors="replace") if place else ""

    def files(self, pattern: str) -> list[Path]:
        """Return the installed files that match a glob pattern. Only the first folder with a matching file counts:
        site-packages, or the source of a package installed by `pip install -e`."""
        return next((files for folder in self._places if (files := sorted(folder.glob(pattern)))), [])

    def has_module(self, name: str) -> bool:
        """Return whether a site-packages folder holds a module of this name."""
        return bool(self.files(f"{name}/__init__.py") or self.files(f"{name}.py"))


def normalize_name(name: str) -> str:
    """Return the package name in its normal form (PEP 503): lower case, with single dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def find_installed(folders: tuple[str, ...] | None = None) -> InstalledPackages:
    """Return the packages in these site-packages folders. Without folders, return the packages of the Python that runs
    llamafactory-cli, which may be another Python than this one. If llamafactory-cli is not on PATH, return the packages
    of this Python."""
    return InstalledPackages(folders or _folders_of_program(shutil.which("llamafactory-cli")) or tuple(sys.path))


def _folders_of_program(path: str | None) -> tuple[str, ...]:
    """Return the site-packages folders of the Python that the first line of a script (`#!…`) names, and the folders
    that `.pth` files in them add to the search path, as Python's module `site` does on start. The result is empty
    if there is no script (`path` is None), if its first line names no Python, or if it names the Python that runs this
    program."""
    if path is None:
        return ()
    with Path(path).open("rb") as script:
        first = script.readline().decode(errors="replace").strip()
    python = first.removeprefix("#!")
    if python == first or python == sys.executable or not Path(python).name.startswith("python"):
        return ()
    root = Path(python).parent.parent
    folders = [folder for name in ("site-packages", "dist-packages")
               for folder in sorted(root.glob(f"lib*/python3*/{name}"))]  # fmt: skip
    added = [folder / named for folder in folders for file in sorted(folder.glob("*.pth"))
             for named in _folders_in_pth(file)]  # fmt: skip
    return tuple(map(str, (*folders, *filter(Path.is_dir, added))))


def _folders_in_pth(file: Path) -> list[str]:
    """Return the folders that a `.pth` file adds to the search path, as it names them; empty if it cannot be read."""
    with suppress(OSError):
        lines = map(str.strip, file.read_text("utf-8", errors="replace").splitlines())
        return [line for line in lines if line and not line.startswith(("#", "import"))]
    return []


def has_packaging() -> bool:
    """Return whether the package `packaging` is installed, which comes with transformers. `satisfies_range` and
    `parse_requirements` need this package."""
    return find_spec("packaging") is not None


def satisfies_range(version_range: str, release: str) -> bool:
    """Return whether a release lies in a PEP 440 range. Pre-releases count. True if the range or the release cannot be
    parsed."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(version_range).contains(Version(release), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def parse_requirements(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield package name and version range of each requirement that applies to this Python. Requirements of optional
    extras are skipped."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in texts:
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one.name, str(one.specifier)
