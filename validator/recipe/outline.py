"""The outline of a text file: whether it holds keys, a list or rows of data, and which keys stand at its top. It is
made without parsing, so that a broken, very long or foreign file has an outline, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

# Characters of a text in brackets that are read: the keys of a file that is longer have been seen by then.
_MAX_SCANNED = 1 << 18
_MAX_INDENT = 16  # characters before the keys at the top
_LEADING_LINES = re.compile(r"(?:\s+|#[^\n]*|//[^\n]*|---(?=\s))*")
_BLOCK_KEY = (
    r"""(?:"(?P<double>[^"\n]+)"|'(?P<single>[^'\n]+)'|(?P<bare>[\w.\-]+))[ \t]*:(?:[ \t]+(?P<value>[^\n]*)|$)"""
)
_BRACKET_PART = re.compile(r'"(?:[^"\\\n]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|"')


class Outline(NamedTuple):
    """The outline of a file. `form`: a mapping in lines (`block`) or in braces (`braces`), a list in lines (`list`), a
    list in brackets or objects one behind the other (`rows`), or none of these (`text`). `keys`: the keys at the top,
    each with the beginning of its value. `inner`: the keys inside of each mapping in braces that is the value of such a
    key."""

    form: Literal["block", "braces", "list", "rows", "text"]
    keys: Mapping[str, str] = MappingProxyType({})
    inner: Mapping[str, frozenset[str]] = MappingProxyType({})


def outline_of(text: str) -> Outline:
    """Return the outline of a text in YAML or JSON, whose lines end with a line feed."""
    text = text.removeprefix("\ufeff")
    leading = _LEADING_LINES.match(text)
    begin = leading.end() if leading else 0
    start, indent = text[begin:], begin - text.rfind("\n", 0, begin) - 1
    if start.startswith("{") and not start.startswith("{{"):
        return _outline_of_braces(start[:_MAX_SCANNED])
    if start.startswith(("[", "- ")):
        return Outline("rows" if start.startswith("[") else "list")
    keys: dict[str, str] = {}
    for match in re.finditer(rf"(?m)^ {{{indent if indent <= _MAX_INDENT else 0}}}{_BLOCK_KEY}", text):
        keys[match["double"] or match["single"] or match["bare"]] = (match["value"] or "").strip()
    return Outline("block", keys) if keys else Outline("text")


def _outline_of_braces(text: str) -> Outline:
    parts = _BRACKET_PART.findall(text)
    keys: dict[str, str] = {}
    inner: dict[str, set[str]] = {}
    opened: list[str] = []
    current = ""
    for number, part in enumerate(parts):
        if part in "{[":
            if number and not opened:
                return Outline("rows", keys)
            opened.append(part)
        elif part in "}]":
            del opened[-1:]
        elif part == ":" and opened == ["{"]:
            current = _unquoted(parts[number - 1])
            keys[current] = "".join(map(_unquoted, parts[number + 1 : number + 2]))
        elif part == ":" and opened == ["{", "{"]:
            inner.setdefault(current, set()).add(_unquoted(parts[number - 1]))
    return Outline("braces", keys, {key: frozenset(words) for key, words in inner.items()})


def _unquoted(part: str) -> str:
    return part.strip("\"'")
