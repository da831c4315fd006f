"""Positions in a file: from a route, the keys and list indices that lead to a value, to line and column in YAML or JSON
text. Lines and columns count from 1."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from validator.recipe import omegaconf
from validator.recipe.omegaconf import Node, Position

Route = Sequence[str | int]
_TOP_OF_FILE = (1, 1)
_JSON_DECODER = json.JSONDecoder()


class NodeTree(NamedTuple):
    """The nodes of YAML text that is a part of a file, such as a header block. `lines`, `columns`: how many lines lie
    before the text in the file, and how many characters before each of its lines."""

    root: Node
    text: str
    lines: int = 0
    columns: int = 0

    def holds(self, key: str | int) -> bool:
        """True if the key is one of the document's top-level keys."""
        return _step_into(self.root, key) is not None

    def position(self, route: Route, at_key: bool = False) -> Position:
        """Return the line and column where the value at the end of a route begins; if `at_key`, where its key begins. A
        route is the keys and list indices that lead to a value. If the route leads nowhere, return the position of its
        last part that exists."""
        node, (line, column) = self.root, omegaconf.node_position(self.root)
        for number, part in enumerate(route, 1):
            step = _step_into(node, part)
            if step is None:
                break
            key, node = step
            if key and at_key and number == len(route):
                line, column = omegaconf.node_position(key)
            else:
                line, column = self._value_position(key, node)
        return line + self.lines, column + self.columns

    def _value_position(self, key: Node | None, value: Node) -> Position:
        """Return the line and column where a value is written. An alias's node has the position of its anchor, further
        up in the file, so an alias is located after its key."""
        if key is None or omegaconf.node_position(value) >= omegaconf.node_end(key):
            return omegaconf.node_position(value)
        line, column = omegaconf.node_end(key)
        colon = re.match(r"\s*:\s*", self.text.splitlines()[line - 1][column - 1 :])
        return (line, column + colon.end()) if colon else omegaconf.node_position(key)


def _step_into(node: Node, part: str | int) -> tuple[Node | None, Node] | None:
    """Return the key node and the value node that a key or list index leads to in a node; None if the node has no such
    key or index. In a list the key node is None. A mapping's own keys win over keys that are merged in (`<<`)."""
    if node.id == "sequence":
        is_index = isinstance(part, int) and part < len(node.value)
        return (None, node.value[part]) if is_index else None
    pairs = omegaconf.mapping_pairs(node)
    own_pairs = [pair for pair in pairs if pair[0].id == "scalar" and pair[0].value == str(part)]
    if own_pairs:
        return own_pairs[-1]
    merged = [value for key, value in pairs if key.value == "<<"]
    sources = [
        source for value in merged for source in (omegaconf.child_values(value) if value.id == "sequence" else [value])
    ]
    return next((step for source in sources if (step := _step_into(source, part))), None)


def place_in_file(path: str, text: str, route: Route, at_key: bool = False) -> Position:
    """Return the line and column of a value in a data file, or of its key if `at_key`. `route`: the keys and list
    indices that lead to the value. The suffix of `path` decides whether the text is YAML or JSON."""
    return (
        place_in_yaml(text, route, at_key) if path.endswith((".yaml", ".yml")) else place_in_json(text, route, at_key)
    )


def place_in_yaml(text: str, route: Route, at_key: bool = False) -> Position:
    """Return the line and column of a value in YAML text, or of its key if `at_key`. `route`: the keys and list indices
    that lead to the value. For invalid YAML, return the position of the error."""
    tree = _node_tree(text)
    return tree.position(route, at_key) if isinstance(tree, NodeTree) else tree


@lru_cache(maxsize=1)  # findings in a file come one after the other
def _node_tree(text: str) -> NodeTree | Position:
    """Return the nodes of YAML text, or the position of the error in invalid YAML."""
    try:
        omegaconf.refuse_oversized(text)
        root, _ = omegaconf.compose_yaml(text, lambda _: False)
    except omegaconf.MalformedError as err:
        return err.position
    except ValueError:  # nested too deeply
        return _TOP_OF_FILE
    return NodeTree(root, text) if root else _TOP_OF_FILE


def place_in_json(text: str, route: Route, at_key: bool = False) -> Position:
    """Return the line and column of a value in JSON text, or of its key if `at_key`. `route`: the keys and list indices
    that lead to the value. For invalid JSON, return the position of the error."""
    if fault := _json_fault(text):
        return fault
    offset = value = _skip_space(text, 0)
    for number, part in enumerate(route, 1):
        members = _json_members(text, value)
        if part not in members:
            break
        key, value = members[part]
        offset = key if at_key and number == len(route) else value
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


@lru_cache(maxsize=1)
def _json_fault(text: str) -> Position | None:
    """Return the line and column of the error in invalid JSON; None for valid JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as err:
        return err.lineno, err.colno
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        return _TOP_OF_FILE
    return None


@lru_cache(maxsize=8)  # objects and lists one in the other
def _json_members(text: str, at: int) -> dict[str | int, tuple[int, int]]:
    """Return the offsets of key and value of each member of the object or list that begins at `at`, in valid JSON. For
    a key that is written twice, the offsets of the last one, whose value counts."""
    members: dict[str | int, tuple[int, int]] = {}
    closing = {"{": "}", "[": "]"}.get(text[at])
    at = _skip_space(text, at + 1)
    while closing and text[at] != closing:
        start, name = at, len(members)
        if closing == "}":
            name, at = _JSON_DECODER.raw_decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)
        members[name] = start, at
        at = _skip_space(text, _JSON_DECODER.raw_decode(text, at)[1])
        at = _skip_space(text, at + 1) if text[at] == "," else at
    return members


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at
