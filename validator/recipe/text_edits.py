"""Edits of keys in the text of a recipe (set, rename, remove) that leave every other byte unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from validator.finding import Edit
from validator.recipe import omegaconf
from validator.recipe.omegaconf import Node, is_flow_style
from validator.recipe.recipe_file import Document, parse_recipe
from validator.recipe.yaml_writer import format_scalar, reads_as

_BLANK_REST = r"[ \t]*(?:#.*)?"
_REST_OF_LINE = r"[^\r\n]*(?:\r\n|\r|\n|\Z)"


class UnfitError(ValueError):
    """Raised for an edit that cannot be made without changing other parts of the text; the message says why."""


class _TextEdit(NamedTuple):
    start: int
    end: int
    text: str


def apply_edits(document: Document, edits: Iterable[Edit]) -> Document:
    """Return the recipe with the edits made in its text. The new text is parsed again: raises UnfitError if it would
    say something other than the edits mean, or if two edits overlap."""
    if document.body_tree is None:
        raise UnfitError("the file holds no key")
    unique_edits = tuple(dict.fromkeys(edits))
    root, text = document.body_tree.root, document.text
    spans = sorted({_text_edit(root, text, edit) for edit in unique_edits}, reverse=True)
    if any(later.start < earlier.end for later, earlier in pairwise(spans)):
        raise UnfitError("two remedies are about the same place")
    for span in spans:
        text = text[: span.start] + span.text + text[span.end :]
    after = parse_recipe(document.path, text)
    if after.body_tree is None or _content_of(after.body_tree.root) != list(_expected_content(root, unique_edits)):
        raise UnfitError("the file is written in a way that the edit does not fit")
    return after


def _text_edit(root: Node, text: str, edit: Edit) -> _TextEdit:
    key, value = _key_and_value(root, edit)
    if edit.do == "rename":
        return _rename_key(key, text, str(edit.to))
    if edit.do == "remove":
        return _remove_from_braces(root, key, text) if is_flow_style(root) else _remove_key(key, value, text)
    return _set_value(key, value, text, edit.to)


def _key_and_value(root: Node, edit: Edit) -> tuple[Node, Node]:
    """Return the node of the top-level key that the edit is about, and the node of its value. If the key is written
    twice, those of the last one. Raises UnfitError if the file does not contain the key."""
    pairs = [pair for pair in omegaconf.mapping_pairs(root) if pair[0].id == "scalar" and pair[0].value == edit.key]
    if not pairs:
        raise UnfitError(f"`{edit.key}` is not written in this file itself")
    return pairs[-1]


def _rename_key(key: Node, text: str, name: str) -> _TextEdit:
    start, end = omegaconf.node_span(key)
    if text[start:end].strip("\"'") != key.value:
        raise UnfitError(f"the key `{key.value}` is written in an unusual way")
    return _TextEdit(start, end, text[start:end].replace(key.value, name))


def _set_value(key: Node, value: Node, text: str, to: object) -> _TextEdit:
    start, end = omegaconf.node_span(value)
    inline = value.id == "scalar" or omegaconf.is_flow_style(value)
    if not inline or start < omegaconf.node_span(key)[1] or text[start:end].startswith(("&", "*", "!", "|", ">")):
        raise UnfitError(f"the value of `{key.value}` is written as an alias, by a tag or over several lines")
    gap = " " if start == end and text[start - 1] == ":" else ""
    is_json = text[slice(*omegaconf.node_span(key))].startswith('"')
    new_text = json.dumps(to, ensure_ascii=False) if is_json and isinstance(to, str) else ""
    return _TextEdit(start, end, gap + (new_text or _scalar_text(to, str(value.value))))


def _remove_from_braces(root: Node, key: Node, text: str) -> _TextEdit:
    """Return the change of text that deletes a key with its value and one comma from a mapping in braces. Raises
    UnfitError if a comment may stand between."""
    pairs = omegaconf.mapping_pairs(root)
    at = next(number for number, pair in enumerate(pairs) if pair[0] is key)
    start, end = omegaconf.node_span(key)[0], omegaconf.node_span(pairs[at][1])[1]
    if at + 1 < len(pairs):
        end = omegaconf.node_span(pairs[at + 1][0])[0]
    elif at:
        start = omegaconf.node_span(pairs[at - 1][1])[1]
    if "#" in text[start:end]:
        raise UnfitError(f"a comment stands beside `{key.value}`")
    return _TextEdit(start, end, "")


def _remove_key(key: Node, value: Node, text: str) -> _TextEdit:
    """Return the change of text that deletes the lines of a key and its value, with the comment after the value. Raises
    UnfitError if something else stands on these lines."""
    start, end = omegaconf.node_span(key)[0], max(omegaconf.node_span(key)[1], _end_of_text(value, text))
    line = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    rest = re.compile(_REST_OF_LINE).match(text, end)
    if rest is None or text[line:start].strip() or not re.fullmatch(_BLANK_REST, rest[0].strip("\r\n")):
        raise UnfitError(f"`{key.value}` does not stand on lines of its own")
    return _TextEdit(line, rest.end(), "")


def _end_of_text(node: Node, text: str) -> int:
    """Return the offset just after the last character of a node's text. PyYAML's own end of a node in block style
    includes the blank text up to the next node."""
    start, end = omegaconf.node_span(node)
    if node.id == "scalar" or omegaconf.is_flow_style(node):
        return start + len(text[start:end].rstrip())
    return max((_end_of_text(child, text) for child in omegaconf.child_values(node)), default=end)


def _scalar_text(value: object, before: str) -> str:
    """Return a new value as YAML text. `before`: the text of the old value, which is kept if it stands for the same
    number, because the user may have chosen another notation."""
    kept = isinstance(value, float) and re.fullmatch(r"[\w.+-]+", before) and reads_as(before, value)
    return before if kept else format_scalar(list(value) if isinstance(value, tuple) else value, in_brackets=True)


def _content_of(root: Node) -> list[tuple[str, Any]]:
    """Return the content of a document without its formatting: the keys in their order, each with its value."""
    return [(key.value, _node_content(value)) for key, value in omegaconf.mapping_pairs(root)]


def _node_content(node: Node) -> Any:
    if node.id == "scalar":
        return node.tag, node.value
    if node.id == "sequence":
        return [_node_content(child) for child in node.value]
    return [(_node_content(key), _node_content(value)) for key, value in node.value]


def _expected_content(root: Node, edits: tuple[Edit, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values that a document must have after the edits."""
    last = {key.value: key for key, _ in omegaconf.mapping_pairs(root)}
    of: dict[str, list[Edit]] = {}
    for edit in edits:
        of.setdefault(edit.key, []).append(edit)
    for key, value in omegaconf.mapping_pairs(root):
        mine = of.get(key.value, []) if last[key.value] is key else []
        if not any(edit.do == "remove" for edit in mine):
            name = next((str(edit.to) for edit in mine if edit.do == "rename"), key.value)
            put = next((edit for edit in mine if edit.do == "set"), None)
            yield name, _scalar_content(put.to, str(value.value)) if put else _node_content(value)


def _scalar_content(value: object, before: str) -> Any:
    node, _ = omegaconf.compose_yaml(_scalar_text(value, before), lambda _: False)
    return _node_content(node) if node else None
