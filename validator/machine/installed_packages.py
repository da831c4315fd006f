"""Python packages that a run would import, read from their metadata and files without importing any, and whether a
release lies in a PEP 440 range."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote


class InstalledPackages:
    """The packages in some site-packages folders. Of several with one name, Python imports the first."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = [Path(folder) for folder in folders if folder]

    @cached_property
    def _all(self) -> Mapping[str, Distribution]:
        there: dict[str, Distribution] = {}
        for one in distributions(path=[str(folder) for folder in self._folders]):
            if one.metadata["Name"]:
                there.setdefault(normalize_name(one.metadata["Name"]), one)
        return there

    @cached_property
    def all_versions(self) -> Mapping[str, str]:
        """Versions by package, named as `normalize_name` does."""
        return {name: one.version for name, one in self._all.items()}

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Return the versions of those of these packages that are installed. Other packages are not read."""
        places = [str(folder) for folder in self._folders]
        first = {name: next(iter(distributions(name=name, path=places)), None) for name in names}
        return {name: one.version for name, one in first.items() if one}

    def requirements(self, name: str) -> list[str]:
        """Return what a package requires, as its metadata say; nothing if it is not installed."""
        return list(self._all[name].requires or []) if name in self._all else []

    def origin(self, name: str) -> str:
        """Return the address that a package was installed from; empty if it came from an index (PEP 610)."""
        text = self._all[name].read_text("direct_url.json") if name in self._all else None
        return unquote(str(json.loads(text).get("url", ""))) if text else ""

    @cached_property
    def _places(self) -> list[Path]:
        """The folders, and the source folders of packages installed by `pip install -e`."""
        origins = [self.origin(name).removeprefix("file://") for name in self._all]
        roots = [Path(origin) for origin in origins if origin.startswith("/")]
        return [*self._folders, *(place for root in roots for place in (root / "src", root))]

    def read_file(self, path: str) -> str:
        """Read a file of a package; empty if there is none."""
        place = next((folder / path for folder in self._places if (folder / path).is_file()), None)
        return place.read_text("utf-8", errors="replace") if place else ""

    def files(self, pattern: str) -> list[Path]:
        """Return the files that match, of the first folder with any."""
        return next((files for folder in self._folders if (files := sorted(folder.glob(pattern)))), [])

    def has_module(self, name: str) -> bool:
        """Return whether some package has a module of this name."""
        return bool(self.files(f"{name}/__init__.py") or self.files(f"{name}.py"))


def normalize_name(name: str) -> str:
    """Return the normal form of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def find_installed(folders: tuple[str, ...] | None = None) -> InstalledPackages:
    """Return the packages of these folders. Without folders: the packages of the Python that runs llamafactory-cli, or
    of this Python if llamafactory-cli is not on PATH."""
    return InstalledPackages(folders or _folders_of_program(shutil.which("llamafactory-cli")) or tuple(sys.path))


def _folders_of_program(path: str | None) -> tuple[str, ...]:
    """Return the site-packages folders of the Python that a script's first line names."""
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
    """Return whether `packaging` is installed; it comes with transformers. The functions below need it."""
    return find_spec("packaging") is not None


def satisfies_range(wanted: str, release: str) -> bool:
    """Return whether a release lies in a range, pre-releases included; true if either cannot be parsed."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(wanted).contains(Version(release), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def parse_requirements(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names and ranges of the requirements that hold in this Python, without those of extras."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in texts:
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one.name, str(one.specifier)
