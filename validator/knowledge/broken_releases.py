"""Releases that have a model type and cannot train it, from data/broken.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from validator.knowledge.releases import range_admits
from validator.knowledge.tables import yaml_table

_EVERY_TYPE = "any"


class BrokenReleases(NamedTuple):
    """Releases with which a model type cannot be trained. `releases`: the range of each package; all of them must
    hold. `when`: the condition that the run meets; empty for every run. `named`: the start of the names of the models
    that are meant; empty for all. `effect`: the run stops, is ruined, or loses a part of the model. `what`: what
    happens, as a clause for a message whose subject are the releases. `instead`: the remedy, if another transformers
    release is none."""

    types: tuple[str, ...]
    releases: Mapping[str, str]
    what: str
    effect: Literal["stops", "ruins", "loses"]
    when: str = ""
    named: str = ""
    instead: str = ""

    def admits(self, versions: Mapping[str, str]) -> bool:
        """True if these releases are among the broken ones. `versions`: the release of each package, by name; a package
        that is missing is not among them."""
        return all(name in versions and range_admits(each, versions[name]) for name, each in self.releases.items())


def broken_releases(kind: str) -> Iterator[BrokenReleases]:
    """Yield the broken releases of a model type."""
    table = yaml_table("broken")
    for key in dict.fromkeys([*table.mention(kind.lower()), *table.mention(f"[{_EVERY_TYPE}]")]):
        entry: dict[str, Any] = {name: value for name, value in table[key].items() if name != "source"}
        if kind in entry["types"] or _EVERY_TYPE in entry["types"]:
            yield BrokenReleases(**{**entry, "types": tuple(entry["types"])})
