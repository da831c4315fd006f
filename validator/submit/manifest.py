"""A mapping as YAML that people read and edit: in the order given, with comments, long texts as blocks."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from validator import printable

# A text that YAML 1.1 and 1.2 both read as it stands. What begins with a digit might be a number, a time or a date.
_PLAIN = re.compile(r"[A-Za-z_/](?:[\w./@+=~-]|:(?=[\w./-]))*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}
# What no YAML holds as it stands, or not inside a block.
_HARD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_WIDTH = 118


class Said(NamedTuple):
    """A value with what is to be said of it, in a comment above."""

    value: Value
    comment: str


Value: TypeAlias = "str | float | Said | Mapping[str, Value] | Sequence[Value] | None"


def document(value: Mapping[str, Value]) -> str:
    """One YAML document, without the line that parts it from another."""
    return "".join(f"{line}\n" for line in _mapping(value, ""))


def comment(text: str, indent: str = "") -> Iterator[str]:
    """Lines of a comment, folded."""
    width = _WIDTH - len(indent)
    yield from textwrap.wrap(text, width, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _mapping(value: Mapping[str, Value], indent: str) -> Iterator[str]:
    for key, each in value.items():
        if isinstance(each, Said):
            yield from (f"{indent}{line}" for line in comment(each.comment, indent))
            each = each.value
        yield from _entry(f"{indent}{_scalar(key)}:", each, indent)


def _entry(head: str, value: Value, indent: str) -> Iterator[str]:
    """A key or a dash, with its value on the same line or below."""
    if isinstance(value, str) and _block(value):
        yield f"{head} |{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"{indent}  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    elif isinstance(value, Mapping) and value:
        yield head
        yield from _mapping(value, f"{indent}  ")
    elif isinstance(value, (list, tuple)) and value:
        yield head
        yield from _items(value, f"{indent}  ")
    else:
        yield f"{head} {_scalar(value)}"


def _items(values: Sequence[Value], indent: str) -> Iterator[str]:
    """Each with a dash, which the first line of a mapping stands beside."""
    for each in values:
        if isinstance(each, Said):
            yield from (f"{indent}{line}" for line in comment(each.comment, indent))
            each = each.value
        if isinstance(each, Mapping) and each:
            lines = _mapping(each, f"{indent}  ")
            yield f"{indent}- {next(lines).strip()}"
            yield from lines
        else:
            yield from _entry(f"{indent}-", each, indent)


def _block(text: str) -> bool:
    """Whether a text can stand as lines: its first decides how far it is indented, blank ones at its end are lost."""
    plain = printable.text(text) == text and not _HARD.search(text)
    return "\n" in text and not text.startswith((" ", "\n")) and not text.endswith("\n\n") and plain


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, float):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))  # without a point YAML 1.1 reads a text
    written = printable.json(json.dumps(value, ensure_ascii=False))
    return _HARD.sub(lambda match: f"\\u{ord(match[0]):04x}", written)
