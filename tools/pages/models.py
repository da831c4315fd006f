"""LLaMA-Factory's registry of models: which of its groups the formulas know, and why the others are not known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from validator.errors import RecipeError
from validator.knowledge import models
from validator.knowledge.tables import json_table

REASONS = Path(__file__).parent / "unknown_models.yaml"


class Group(NamedTuple):
    """A group of the registry, by its first registered name. `reason`: why not all its places are known."""

    name: str
    places: tuple[str, ...]
    unknown: tuple[str, ...]
    reason: str

    @property
    def known(self) -> bool:
        """Whether each of its models that is published has an entry."""
        return not self.unknown


@cache
def reasons() -> dict[str, dict[str, str]]:
    """The hand-kept part: reasons by group, and places where nothing is published."""
    read: dict[str, dict[str, str]] = yaml.safe_load(REASONS.read_text("utf-8"))
    return read


def groups() -> Iterator[Group]:
    """In the order in which LLaMA-Factory registers them."""
    registered: dict[str, Any] = json_table("registry")["groups"]
    for name, places in registered.items():
        unknown = tuple(place for place in places if place not in reasons()["places"] and not _entry(place))
        yield Group(name, tuple(places), unknown, reasons()["groups"].get(name, "") if unknown else "")


def _entry(place: str) -> bool:
    try:
        return models.find_model(place).id is not None
    except RecipeError:
        return False


def page() -> str:
    """The counts, the groups that are known, those that are not, and the places that lead nowhere."""
    every = list(groups())
    known, rest = [each for each in every if each.known], [each for each in every if not each.known]
    entries = {entry for each in known for entry in _entries(each)}
    release = json_table("registry")["source"]["llamafactory"]
    lines = [
        f"LLaMA-Factory {release} registers {len(every)} groups of models, at {_places(every)} places.",
        f"The formulas know {len(known)} groups ({len(known) / len(every):.0%}) whole: {_places(known)} places,",
        f"{len(entries)} sizes.\n",
        "| group | known by formula | why not all |",
        "| --- | --- | --- |",
        *(f"| {_title(each)} | {_share(each)} | {each.reason} |" for each in rest),
        "\n## Known\n",
        "| group | entries |",
        "| --- | --- |",
        *(f"| {_title(each)} | {', '.join(_entries(each))} |" for each in known),
        "\n## Places where nothing is published\n",
        *(f"- `{place}`: {reason}" for place, reason in reasons()["places"].items()),
    ]
    return "\n".join(lines) + "\n"


def _title(group: Group) -> str:
    return f"{group.name} ({len(group.places)} places)"


def _places(some: list[Group]) -> int:
    return len({place for each in some for place in each.places})


def _share(group: Group) -> str:
    there = len(group.places) - len(group.unknown)
    return f"{there} of {len(group.places)}" if there else "none"


def _entries(group: Group) -> Iterator[str]:
    ids = (models.find_model(place).id for place in group.places if _entry(place))
    return (f"`{each}`" for each in dict.fromkeys(ids))
