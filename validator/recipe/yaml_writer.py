"""Writes a mapping as YAML that people read and edit: keys in the order given, comments, long texts as blocks."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from validator import escaping

# A text that YAML 1.1 and 1.2 both read as it stands. What begins with a digit might be a number, a time or a date.
_PLAIN_SCALAR = re.compile(r"[A-Za-z_/](?:[\w./@+=~-]|:(?=[\w./-]))*")
_RESERVED_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}
# What no YAML holds as it stands, or not inside a block.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_WIDTH = 118


class Commented(NamedTuple):
    """A value with what is to be said of it, in a comment above."""

    value: YamlValue
    comment: str


YamlValue: TypeAlias = "str | float | Commented | Mapping[str, YamlValue] | Sequence[YamlValue] | None"


def yaml_document(value: Mapping[str, YamlValue]) -> str:
    """One YAML document, without the line that parts it from another."""
    return "".join(f"{line}\n" for line in _mapping_lines(value, ""))


def comment_lines(text: str, indent: str = "") -> Iterator[str]:
    """Lines of a comment, folded."""
    width = _WIDTH - len(indent)
    yield from textwrap.wrap(text, width, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _mapping_lines(value: Mapping[str, YamlValue], indent: str) -> Iterator[str]:
    for key, each in value.items():
        if isinstance(each, Commented):
            yield from (f"{indent}{line}" for line in comment_lines(each.comment, indent))
            each = each.value
        yield from _entry_lines(f"{indent}{_format_scalar(key)}:", each, indent)


def _entry_lines(head: str, value: YamlValue, indent: str) -> Iterator[str]:
    """A key or a dash, with its value on the same line or below."""
    if isinstance(value, str) and _fits_block(value):
        yield f"{head} |{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"{indent}  {line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    elif isinstance(value, Mapping) and value:
        yield head
        yield from _mapping_lines(value, f"{indent}  ")
    elif isinstance(value, (list, tuple)) and value:
        yield head
        yield from _item_lines(value, f"{indent}  ")
    else:
        yield f"{head} {_format_scalar(value)}"


def _item_lines(values: Sequence[YamlValue], indent: str) -> Iterator[str]:
    """Each with a dash, which the first line of a mapping stands beside."""
    for each in values:
        if isinstance(each, Commented):
            yield from (f"{indent}{line}" for line in comment_lines(each.comment, indent))
            each = each.value
        if isinstance(each, Mapping) and each:
            lines = _mapping_lines(each, f"{indent}  ")
            yield f"{indent}- {next(lines).strip()}"
            yield from lines
        else:
            yield from _entry_lines(f"{indent}-", each, indent)


def _fits_block(text: str) -> bool:
    """Whether a text can stand as lines: its first decides how far it is indented, blank ones at its end are lost."""
    plain = escaping.escape_text(text) == text and not _UNPRINTABLE.search(text)
    return "\n" in text and not text.startswith((" ", "\n")) and not text.endswith("\n\n") and plain


def _format_scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN_SCALAR.fullmatch(value) and value.lower() not in _RESERVED_WORDS:
        return value
    if isinstance(value, float):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))  # without a point YAML 1.1 reads a text
    written = escaping.escape_json(json.dumps(value, ensure_ascii=False))
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", written)
