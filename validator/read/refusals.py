"""What OmegaConf refuses although YAML allows it, and numbers that YAML 1.1 reads as hardly anybody means them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.diagnostic import Diagnostic, Edit, Fix, Severity
from validator.read import dialect
from validator.read.dialect import NULL, STRING, Node
from validator.read.text import clip

# What a value holds is looked at by many rules, each of which takes longer the longer it is.
_LONGEST = 1 << 15  # characters
# But for lists of new tokens, of which there may be thousands: codes of pictures, sounds or actions.
_LISTS = ("add_tokens", "add_special_tokens")
TWICE = "LOA004"
_REFUSED = {"tag:yaml.org,2002:set", "tag:yaml.org,2002:timestamp"}
# What OmegaConf's grammar takes behind `${`, with the `}`: a path of keys, or a resolver with arguments.
# \0 stands for the text `${`; \x01 for an interpolation within another, which is a key by itself and no part of one;
# \x02 for one without a name, which no other may hold.
_KEY = r"""(?:(?:[^\\{}()\[\]:.\s'"\0\x01\x02]|\\[.:=\[\]\\])+|\x01)"""
_NODE = rf"\.*(?:{_KEY}|\[{_KEY}\])(?:\.{_KEY}|\[{_KEY}\])*"
_WORD = r"[\w/\-+.$%*@?|]+"
_NAMELESS = rf":\s*{_WORD}(?:\s*,\s*{_WORD})*"
_NAME = r"(?:[A-Za-z_][\w\-]*|\x01)"
_PATH = rf"\s*+(?:{_NODE}|(?P<nameless>{_NAMELESS}))\s*\}}"
_RESOLVER = rf"\s*{_NAME}(?:\.{_NAME})*\s*:"
_ESCAPE = r"\\[\\()\[\]{}:=, \t]"
_ARGUMENT = rf"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|(?:{_ESCAPE}|[\w/\-+.$%*@?|:\\ \t\x01])+"""
_MAPPED = rf"(?:{_ESCAPE}|[\w/\-+.$%*@?|\\ \t])+:"
# Brackets that may be open among the arguments of a resolver, with those that close them.
_CLOSES = {"resolver": "}", "list": "]", "mapping": "}"}
# The parts that may follow the last part inside such a bracket. A part is a comma, a colon (with the key before it), a
# value (quoted text or words) or a bracket.
_FOLLOWS = {
    "resolver": {"": ("value", "open", ",", "close"), ",": ("value", "open", ",", "close"), "value": (",", "close")},
    "mapping": {"": (":", "close"), ",": (":",), ":": ("value", "open"), "value": (",", "close")},
}
_FOLLOWS["list"] = _FOLLOWS["resolver"]
_FEW = 16  # characters
_ESCAPED = r"(?<!\\)(?:\\\\)*\\\$\{"


def refusals(node: Node, top: bool = True) -> Iterator[Diagnostic]:
    """LOA001, LOA002 and LOA004 of a document."""
    yield from _keys(node, top)
    if node.tag in _REFUSED:
        yield at("LOA002", f"`!!{node.tag.rpartition(':')[2]}` is not a type that LLaMA-Factory's reader takes", node)
    elif dialect.single(node, STRING) and "${" in node.value and not _interpolates(node.value):
        yield at("LOA002", "`${` begins an interpolation that is not well formed; write `\\${` for the text", node)
    lists = [value for key, value in dialect.pairs(node) if key.value in _LISTS] if top else ()
    for child in dialect.inner(node):
        if _endless(child) and child not in lists:
            yield _too_long(child)
        else:
            yield from refusals(child, top=False)


def surprises(node: Node) -> Iterator[Diagnostic]:
    """LOA008: numbers at the top of a document that are read in base 8 or 60."""
    for key, value in dialect.pairs(node):
        text = value.value.replace("_", "") if dialect.single(value, dialect.INTEGER) else ""
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
        if _endless(key):
            yield _too_long(key)
        elif key.tag == NULL:
            yield at("LOA002", "a key is empty or null; write its name", key)
        elif dialect.single(key, STRING) and key.value in lines:
            text = f"`{clip(key.value)}` is written twice (first on line {lines[key.value]}); remove one"
            same = top and _same(first[key.value], value)
            fix = Fix((Edit("remove", key.value),)) if same else None
            yield at(TWICE, text, key)._replace(key=key.value, fix=fix)
        elif dialect.single(key, STRING):
            lines[key.value], first[key.value] = key.start_mark.line + 1, value


def _endless(node: Node) -> bool:
    return node.id == "scalar" and len(node.value) > _LONGEST


def _too_long(node: Node) -> Diagnostic:
    what = f"{len(node.value):,} characters are written as one value, of which no recipe needs more than {_LONGEST:,}"
    return at("LOA001", f"{what}; check that this is the right file", node)


def _same(one: Node, other: Node) -> bool:
    """Whether both are the same single value."""
    return one.id == other.id == "scalar" and (one.tag, one.value) == (other.tag, other.value)


def _interpolates(text: str) -> bool:
    """Whether every `${` begins a well-formed interpolation. The last holds no other."""
    _, *parts = re.sub(_ESCAPED, r"\0", text).split("${")
    behind: list[str] = []  # characters, the nearest last
    for part in reversed(parts):
        behind += reversed(part)
        end, nameless = _first(behind)
        if not end:
            return False
        behind[-end:] = "\2" if nameless else "\1"
    return True


def _first(behind: list[str]) -> tuple[int, bool]:
    """Return the length of the interpolation that these characters begin with, and whether it has no name.

    `behind` holds the characters that follow the `${`, the first of them last. The length is 0 if they form no valid
    interpolation. Short beginnings are tried before long ones, so that many interpolations take linear time together.
    """
    width = _FEW
    while True:
        text = "".join(behind[: -width - 1 : -1])
        if path := re.match(_PATH, text):
            return path.end(), bool(path["nameless"])
        resolver = re.match(_RESOLVER, text)
        end = _end(text, resolver.end()) if resolver else 0
        if end or width >= len(behind):
            return end, False
        width *= _FEW


def _end(text: str, at: int) -> int:
    """Return the position behind the `}` that closes a resolver whose arguments begin at `at`, or 0 if they are not
    valid."""
    opened = ["resolver"]
    last = ""  # the last part inside the innermost bracket
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        follows = _FOLLOWS[opened[-1]][last]
        part, end = _part(text, at, _CLOSES[opened[-1]], ":" in follows)
        if part not in follows:
            return 0
        if part == "open":
            opened.append("list" if text[at] == "[" else "mapping")
            last = ""
        elif part == "close":
            opened.pop()
            if not opened:
                return end
            last = "value"
        else:
            last = part
        at = end
    return 0


def _part(text: str, at: int, closes: str, keyed: bool) -> tuple[str, int]:
    """Return the part of a resolver's arguments that begins at `at`, as _FOLLOWS names it, and the position behind it.
    The part is empty if none begins there."""
    if text[at] == closes:
        return "close", at + 1
    if text[at] in ",[{":
        return "," if text[at] == "," else "open", at + 1
    match = re.compile(_MAPPED if keyed else _ARGUMENT).match(text, at)
    return (":" if keyed else "value", match.end()) if match else ("", at)
