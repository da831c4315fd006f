"""Edits in the text of a recipe: all else stays as it is, byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from validator.diagnostic import Edit
from validator.read import dialect
from validator.read.dialect import Node
from validator.read.recipe import Document, parse

_BLANK = r"[ \t]*(?:#.*)?"
_LINE = r"[^\r\n]*(?:\r\n|\r|\n|\Z)"


class UnfitError(ValueError):
    """An edit that cannot be made exactly, and why."""


class _Span(NamedTuple):
    start: int
    end: int
    text: str


def edited(document: Document, edits: Iterable[Edit]) -> Document:
    """The recipe after the edits. Raises UnfitError where it would then say something else than they mean."""
    if document.body_tree is None:
        raise UnfitError("the file holds no key")
    wanted = tuple(dict.fromkeys(edits))
    root, text = document.body_tree.root, document.text
    spans = sorted({_span(root, text, edit) for edit in wanted}, reverse=True)
    if any(later.start < earlier.end for later, earlier in pairwise(spans)):
        raise UnfitError("two remedies are about the same place")
    for span in spans:
        text = text[: span.start] + span.text + text[span.end :]
    after = parse(document.path, text)
    if after.body_tree is None or _plain(after.body_tree.root) != list(_meant(root, wanted)):
        raise UnfitError("the file is written in a way that the edit does not fit")
    return after


def _span(root: Node, text: str, edit: Edit) -> _Span:
    key, value = _pair(root, edit)
    if edit.do == "rename":
        return _renamed(key, text, str(edit.to))
    return _removed(root, key, value, text) if edit.do == "remove" else _set(key, value, text, edit.to)


def _pair(root: Node, edit: Edit) -> tuple[Node, Node]:
    """Key and value at the top; of a key written twice the last."""
    own = [pair for pair in dialect.pairs(root) if pair[0].id == "scalar" and pair[0].value == edit.key]
    if not own:
        raise UnfitError(f"`{edit.key}` is not written in this file itself")
    return own[-1]


def _renamed(key: Node, text: str, name: str) -> _Span:
    start, end = dialect.span(key)
    if text[start:end].strip("\"'") != key.value:
        raise UnfitError(f"the key `{key.value}` is written in an unusual way")
    return _Span(start, end, text[start:end].replace(key.value, name))


def _set(key: Node, value: Node, text: str, to: object) -> _Span:
    start, end = dialect.span(value)
    inline = value.id == "scalar" or dialect.flows(value)
    if not inline or start < dialect.span(key)[1] or text[start:end].startswith(("&", "*", "!", "|", ">")):
        raise UnfitError(f"the value of `{key.value}` is written as an alias, by a tag or over several lines")
    gap = " " if start == end and text[start - 1] == ":" else ""
    return _Span(start, end, gap + _written(to, str(value.value)))


def _removed(root: Node, key: Node, value: Node, text: str) -> _Span:
    """The lines of a key, with a comment behind its value."""
    start, end = dialect.span(key)[0], max(dialect.span(key)[1], _end(value, text))
    line = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    rest = re.compile(_LINE).match(text, end)
    if (
        rest is None
        or dialect.flows(root)
        or text[line:start].strip()
        or not re.fullmatch(_BLANK, rest[0].strip("\r\n"))
    ):
        raise UnfitError(f"`{key.value}` does not stand on lines of its own")
    return _Span(line, rest.end(), "")


def _end(node: Node, text: str) -> int:
    """Where the last character of a node stands: PyYAML lets a block reach to what follows."""
    start, end = dialect.span(node)
    if node.id == "scalar" or dialect.flows(node):
        return start + len(text[start:end].rstrip())
    return max((_end(child, text) for child in dialect.inner(node)), default=end)


def _written(value: object, before: str) -> str:
    """The value as YAML that every reader takes for it; a number as it was written, where that is one."""
    if isinstance(value, str):
        return value if _reads_as(value, value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        exact = re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
        return before if _reads_as(before, value) else exact
    return json.dumps(value, ensure_ascii=False)


def _reads_as(text: str, value: object) -> bool:
    """Whether the text is this value for OmegaConf and for plain YAML, and no more than one plain word of it."""
    if not re.fullmatch(r"[\w./+-]+", text):
        return False
    try:
        read = dialect.plain(text), dialect.compose(text, lambda _: True)[1]
    except ValueError:
        return False
    return all(type(each) is type(value) and each == value for each in read)


def _plain(root: Node) -> list[tuple[str, Any]]:
    """What a document says, whatever it looks like: its keys in their order, each with its value."""
    return [(key.value, _said(value)) for key, value in dialect.pairs(root)]


def _said(node: Node) -> Any:
    if node.id == "scalar":
        return node.tag, node.value
    if node.id == "sequence":
        return [_said(child) for child in node.value]
    return [(_said(key), _said(value)) for key, value in node.value]


def _meant(root: Node, edits: tuple[Edit, ...]) -> Iterator[tuple[str, Any]]:
    """What a document is to say after the edits."""
    last = {key.value: key for key, _ in dialect.pairs(root)}
    of: dict[str, list[Edit]] = {}
    for edit in edits:
        of.setdefault(edit.key, []).append(edit)
    for key, value in dialect.pairs(root):
        mine = of.get(key.value, []) if last[key.value] is key else []
        if not any(edit.do == "remove" for edit in mine):
            name = next((str(edit.to) for edit in mine if edit.do == "rename"), key.value)
            put = next((edit for edit in mine if edit.do == "set"), None)
            yield name, _scalar(put.to, str(value.value)) if put else _said(value)


def _scalar(value: object, before: str) -> Any:
    node, _ = dialect.compose(_written(value, before), lambda _: False)
    return _said(node) if node else None
