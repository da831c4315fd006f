"""Where a route of keys and indices leads in a text: line and column, both from 1."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from validator.read import dialect, limits
from validator.read.dialect import Node, Position

Route = Sequence[str | int]
_TOP = (1, 1)
_JSON = json.JSONDecoder()


class Tree(NamedTuple):
    """The nodes of YAML text that begins after `lines` lines and `columns` characters of its file."""

    root: Node
    text: str
    lines: int = 0
    columns: int = 0

    def holds(self, key: str | int) -> bool:
        """Whether the key stands at the top."""
        return _step(self.root, key) is not None

    def position(self, route: Route, at_key: bool = False) -> Position:
        """Where the value at the end of the route begins, or its key; of the nearest mapping or list around it, where
        the rest of the route is not there."""
        node, (line, column) = self.root, dialect.position(self.root)
        for number, part in enumerate(route, 1):
            step = _step(node, part)
            if step is None:
                break
            key, node = step
            if key and at_key and number == len(route):
                line, column = dialect.position(key)
            else:
                line, column = self._alias(key) if key and _aliased(key, node) else dialect.position(node)
        return line + self.lines, column + self.columns

    def _alias(self, key: Node) -> Position:
        """Where an alias stands, whose node only knows the place of its anchor: behind its key."""
        line, column = dialect.end(key)
        colon = re.match(r"\s*:\s*", self.text.splitlines()[line - 1][column - 1 :])
        return (line, column + colon.end()) if colon else dialect.position(key)


def _step(node: Node, part: str | int) -> tuple[Node | None, Node] | None:
    """Key and value of one part of a route; a mapping that is merged in (`<<`) comes after the mapping's own keys."""
    if node.id == "sequence":
        there = isinstance(part, int) and part < len(node.value)
        return (None, node.value[part]) if there else None
    pairs = dialect.pairs(node)
    own = [pair for pair in pairs if pair[0].id == "scalar" and pair[0].value == str(part)]
    if own:
        return own[-1]
    merged = [value for key, value in pairs if key.value == "<<"]
    sources = [source for value in merged for source in (dialect.inner(value) if value.id == "sequence" else [value])]
    return next((step for source in sources if (step := _step(source, part))), None)


def _aliased(key: Node, value: Node) -> bool:
    """Whether the value was written further up, behind an anchor."""
    return dialect.position(value) < dialect.end(key)


def in_file(path: str, text: str, route: Route, at_key: bool = False) -> Position:
    """Where a route leads in a data file: YAML by its ending, else JSON."""
    return in_yaml(text, route, at_key) if path.endswith((".yaml", ".yml")) else in_json(text, route, at_key)


def in_yaml(text: str, route: Route, at_key: bool = False) -> Position:
    """Where a route leads in YAML; where the text is broken, the place of the fault."""
    tree = _tree(text)
    return tree.position(route, at_key) if isinstance(tree, Tree) else tree


@lru_cache(maxsize=1)  # findings in a file come one after the other
def _tree(text: str) -> Tree | Position:
    """The nodes of YAML, or where it is broken."""
    try:
        limits.extent(text)
        root, _ = dialect.compose(text, lambda _: False)
    except dialect.MalformedError as err:
        return err.position
    except ValueError:  # nested too deeply
        return _TOP
    return Tree(root, text) if root else _TOP


def in_json(text: str, route: Route, at_key: bool = False) -> Position:
    """Where a route leads in JSON; where the text is broken, the place of the fault."""
    if fault := _fault(text):
        return fault
    here = value = _behind_space(text, 0)
    for number, part in enumerate(route, 1):
        members = _members(text, value)
        if part not in members:
            break
        key, value = members[part]
        here = key if at_key and number == len(route) else value
    return text.count("\n", 0, here) + 1, here - text.rfind("\n", 0, here)


@lru_cache(maxsize=1)
def _fault(text: str) -> Position | None:
    """Where JSON is broken; None where it is not."""
    try:
        json.loads(text)
    except json.JSONDecodeError as err:
        return err.lineno, err.colno
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        return _TOP
    return None


@lru_cache(maxsize=8)  # objects and lists one in the other
def _members(text: str, at: int) -> dict[str | int, tuple[int, int]]:
    """Offsets of key and value of each member of the object or list at an offset of valid JSON; of a key written twice
    the last, which counts."""
    members: dict[str | int, tuple[int, int]] = {}
    closing = {"{": "}", "[": "]"}.get(text[at])
    at = _behind_space(text, at + 1)
    while closing and text[at] != closing:
        start, name = at, len(members)
        if closing == "}":
            name, at = _JSON.raw_decode(text, at)
            at = _behind_space(text, _behind_space(text, at) + 1)
        members[name] = start, at
        at = _behind_space(text, _JSON.raw_decode(text, at)[1])
        at = _behind_space(text, at + 1) if text[at] == "," else at
    return members


def _behind_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at
