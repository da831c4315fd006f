"""The files of data/: generated JSON tables, and hand-kept YAML tables that are parsed entry by entry."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from validator.read.tree import parse_data

DATA = Path(__file__).parent.parent / "data"
_ENTRY = r"\n(?=\w[\w.\-]*:)"


@cache
def table(name: str) -> Any:
    """One of the generated JSON tables in data/."""
    return json.loads((DATA / f"{name}.json").read_text("utf-8"))


class Entries(Mapping[str, Any]):
    """A hand-kept YAML table of data/. An entry is parsed when it is asked for: a whole table would take most of a
    check's time."""

    def __init__(self, name: str) -> None:
        parts = re.split(_ENTRY, "\n" + (DATA / f"{name}.yaml").read_text("utf-8"))[1:]
        self._texts = {part.partition(":")[0]: f"{part}\n" for part in parts}
        self._parsed: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._parsed:
            self._parsed[key] = parse_data(self._texts[key])[key]
        return self._parsed[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, key: object) -> bool:
        return key in self._texts

    def mention(self, words: str) -> Iterator[str]:
        """Keys of the entries whose text holds these words, in lower case."""
        return (key for key, text in self._texts.items() if words in text.lower())


@cache
def listing(name: str) -> Entries:
    """One of the hand-kept YAML tables in data/."""
    return Entries(name)
