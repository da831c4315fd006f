"""Reads the files of data/: generated JSON tables, and hand-kept YAML tables whose entries are parsed only when they
are used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from validator.errors import RecipeError
from validator.recipe.safe_read import parse_trusted_yaml

DATA_FOLDER = Path(__file__).parent.parent / "data"
# Keys that every entry of a table has. The head of the table's file says what each means.
REQUIRED_KEYS: Mapping[str, tuple[str, ...]] = {
    "models": (
        "hub", "modelscope", "short", "template", "base", "licence", "released", "parameters", "dtype", "config",
        "source",
    ),
    "devices": (
        "name", "aliases", "products", "vendor", "memory_gib", "usable_gib", "context_gib", "compute_capability",
        "bf16", "fp8", "flash_attention", "bitsandbytes", "tflops_bf16", "tflops_fp16", "tflops_fp32", "bandwidth_gb_s",
        "link", "host_link", "watts", "server", "timed", "evidence", "source",
    ),
}  # fmt: skip
_ENTRY_KEY = re.compile(r"\w[\w.\-/#]*")
_ENTRY_START = re.compile(rf"\n({_ENTRY_KEY.pattern}):")


@cache
def json_table(name: str) -> Any:
    """Return the generated JSON table of this name in data/."""
    return json.loads((DATA_FOLDER / f"{name}.json").read_text("utf-8"))


class YamlTable(Mapping[str, Any]):
    """A hand-kept YAML table of data/, as a mapping. An entry is cut out of the text and parsed when it is first used,
    because splitting or parsing the whole table would take most of a check's time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._text = f"\n{(DATA_FOLDER / f'{name}.yaml').read_text('utf-8')}"
        self._parsed: dict[str, Any] = {}

    @cached_property
    def _lower(self) -> str:
        return self._text.lower()

    def __getitem__(self, key: str) -> Any:
        if key not in self._parsed:
            if key not in self:
                raise KeyError(key)
            start = self._text.find(f"\n{key}:")
            entry = parse_trusted_yaml(f"{self._text[start : self._end(start)]}\n")[key]
            if lacking := [each for each in REQUIRED_KEYS.get(self._name, ()) if each not in entry]:
                raise RecipeError(
                    f"validator/data/{self._name}.yaml: `{key}` lacks {', '.join(f'`{each}`' for each in lacking)}; the"
                    " head of the file says what to write"
                )
            self._parsed[key] = entry
        return self._parsed[key]

    def __iter__(self) -> Iterator[str]:
        return (match[1] for match in _ENTRY_START.finditer(self._text))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(_ENTRY_KEY.fullmatch(key)) and f"\n{key}:" in self._text

    def _end(self, start: int) -> int:
        """Return the position at which the entry that starts at `start` ends."""
        following = _ENTRY_START.search(self._text, start + 1)
        return following.start() if following else len(self._text)

    def _start(self, position: int) -> int:
        """Return the position at which the entry around `position` starts; -1 before the first entry."""
        start = self._text.rfind("\n", 0, position + 1)
        while start >= 0 and not _ENTRY_START.match(self._text, start):
            start = self._text.rfind("\n", 0, start)
        return start

    def mention(self, words: str) -> Iterator[str]:
        """Yield the keys of the entries whose text contains `words`. Case does not count; `words` must be in lower
        case."""
        place = self._lower.find(words)
        while 0 <= place < len(self._text):
            start = self._start(place)
            if start >= 0 and (entry := _ENTRY_START.match(self._text, start)):
                yield entry[1]
            place = self._lower.find(words, self._end(max(start, place - 1)))

    def matches(self, pattern: str) -> list[str]:
        """Return the text of the pattern's group for every match in the whole table, in any case. `pattern`: a regular
        expression with one group. No entry is parsed."""
        return re.findall(pattern, self._text, re.IGNORECASE)

    def matching(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
        """Yield a pair for every match in the whole table: the key of the entry that contains the match, and the text
        of the pattern's first group. No entry is parsed."""
        for match in pattern.finditer(self._text):
            if entry := _ENTRY_START.match(self._text, max(self._start(match.start()), 0)):
                yield entry[1], match[1]


@cache
def yaml_table(name: str) -> YamlTable:
    """Return the hand-kept YAML table of this name in data/."""
    return YamlTable(name)
