"""Ranges of releases, as packages write them (PEP 440, PEP 508), by the package that pip and transformers ask, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec


def readable() -> bool:
    """Whether `packaging` is here, which comes with transformers; without it nothing else of this module is called."""
    return find_spec("packaging") is not None


def admits(wanted: str, release: str) -> bool:
    """Whether a range holds a release, one before a release included; true where either cannot be read."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(wanted).contains(Version(release), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def read(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names and ranges of the requirements that hold in this Python, extras left out."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in texts:
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one.name, str(one.specifier)
