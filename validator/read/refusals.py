"""What OmegaConf refuses although YAML allows it, and numbers that YAML 1.1 reads as hardly anybody means them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.diagnostic import Diagnostic, Edit, Fix, Severity
from validator.read import dialect
from validator.read.dialect import NULL, STRING, Node
from validator.read.text import clip

_REFUSED = {"tag:yaml.org,2002:set", "tag:yaml.org,2002:timestamp"}
# What OmegaConf's grammar takes between `${` and `}`: a path of keys, or a resolver with arguments.
_KEY = r"""[^\\{}()\[\]:.\s'"]+"""
_NODE = rf"\.*(?:{_KEY}|\[{_KEY}\])(?:\.{_KEY}|\[{_KEY}\])*"
_ARGUMENT = r"""(?:[\w/\-+.$%*@?|:,\\ \t\[\]]|'[^']*'|"[^"]*"|\{[^{}]*\})*"""
_WORD = r"[\w/\-+.$%*@?|]+"
_NAMELESS = rf":\s*(?:{_WORD}(?:\s*,\s*{_WORD})*)?"
_RESOLVER = rf"[A-Za-z_][\w\-]*(?:\.[A-Za-z_][\w\-]*)*\s*:{_ARGUMENT}"
# Compiled when first needed, which few runs do.
_INTERPOLATION = rf"\$\{{\s*(?:{_NODE}|{_NAMELESS}|{_RESOLVER})\s*\}}"
_ESCAPED = r"(?<!\\)(?:\\\\)*\\\$\{"


def refusals(node: Node, top: bool = True) -> Iterator[Diagnostic]:
    """LOA002 and LOA004 of a document."""
    yield from _keys(node, top)
    if node.tag in _REFUSED:
        yield at("LOA002", f"`!!{node.tag.rpartition(':')[2]}` is not a type that LLaMA-Factory's reader takes", node)
    elif node.tag == STRING and "${" in node.value and not _interpolates(node.value):
        yield at("LOA002", "`${` begins an interpolation that is not well formed; write `\\${` for the text", node)
    for child in dialect.inner(node):
        yield from refusals(child, top=False)


def surprises(node: Node) -> Iterator[Diagnostic]:
    """LOA008: numbers at the top of a document that are read in base 8 or 60."""
    for key, value in dialect.pairs(node):
        text = value.value.replace("_", "") if value.tag == dialect.INTEGER else ""
        if ":" in text or (text.lstrip("+-")[:1] == "0" and text.lstrip("+-0").isdecimal()):
            what = f"`{clip(key.value)}: {value.value}` is read as {dialect.integer(value.value)}"
            yield at("LOA008", what, value)._replace(severity=Severity.WARNING, key=key.value)


def at(code: str, message: str, node: Node) -> Diagnostic:
    """An error at a node."""
    return Diagnostic(code, Severity.ERROR, message, *dialect.position(node))


def _keys(node: Node, top: bool) -> Iterator[Diagnostic]:
    lines: dict[str, int] = {}
    first: dict[str, Node] = {}
    for key, value in dialect.pairs(node):
        if key.tag == NULL:
            yield at("LOA002", "a key is empty or null; write its name", key)
        elif key.tag == STRING and key.value in lines:
            text = f"`{clip(key.value)}` is written twice (first on line {lines[key.value]}); remove one"
            same = top and _same(first[key.value], value)
            fix = Fix((Edit("remove", key.value),)) if same else None
            yield at("LOA004", text, key)._replace(key=key.value, fix=fix)
        elif key.tag == STRING:
            lines[key.value], first[key.value] = key.start_mark.line + 1, value


def _same(one: Node, other: Node) -> bool:
    """Whether both are the same single value."""
    return one.id == other.id == "scalar" and (one.tag, one.value) == (other.tag, other.value)


def _interpolates(text: str) -> bool:
    """Whether every `${` begins a well-formed interpolation; inner ones are reduced to a plain word first."""
    text, count = re.sub(_ESCAPED, r"\\", text), 1  # a backslash, which no key may hold
    while count:
        text, count = re.subn(_INTERPOLATION, "x", text)
    return "${" not in text
