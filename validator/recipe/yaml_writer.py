"""Writes YAML for people to read and edit: a single value, or a mapping with its keys in the given order, with
comments, and with long texts as blocks."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeAlias

from validator import escaping
from validator.recipe import omegaconf

# Texts that need no quotes, if both readers at hand read them as text. What begins with a digit always has quotes:
# readers differ in what they take for a number, a time or a date.
_PLAIN_TEXT = re.compile(r"(?:[^\W\d]|[./~])(?:[\w./~+,@()= -]|:(?=[\w./-]))*(?<! )")
# Truth values of YAML 1.1 that PyYAML reads as text.
_ONE_LETTER_TRUTHS = {"y", "n"}
# What no YAML holds as it stands, or not inside a block.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_WIDTH = 118


class Commented(NamedTuple):
    """A value and the comment that is written on the lines above the value."""

    value: YamlValue
    comment: str


YamlValue: TypeAlias = "str | float | Commented | Mapping[str, YamlValue] | Sequence[YamlValue] | None"


def yaml_document(value: Mapping[str, YamlValue], head: Sequence[str] = ()) -> str:
    """Return the text of one YAML document, without the `---` line that separates documents."""
    comments = [line for text in head for line in comment_lines(text)]
    return "".join(f"{line}\n" for line in (*comments, *([""] if head else []), *_mapping_lines(value, "")))


def comment_lines(text: str, indent: str = "") -> Iterator[str]:
    """Yield the text as comment lines, wrapped at the usual width."""
    width = _WIDTH - len(indent)
    yield from textwrap.wrap(text, width, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _mapping_lines(value: Mapping[str, YamlValue], indent: str) -> Iterator[str]:
    for key, each in value.items():
        if isinstance(each, Commented):
            yield from (f"{indent}{line}" for line in comment_lines(each.comment, indent))
            each = each.value
        yield from _entry_lines(f"{indent}{format_scalar(key)}:", each, indent)


def _entry_lines(head: str, value: YamlValue, indent: str) -> Iterator[str]:
    """Yield the lines of a mapping's key or of a list's item. `head`: the key with its colon, or the dash. The value
    follows on the same line or on the lines below."""
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
        yield f"{head} {format_scalar(value)}"


def _item_lines(values: Sequence[YamlValue], indent: str) -> Iterator[str]:
    """Yield the lines of a list, each item after a dash. If an item is a mapping, its first line stands on the line of
    the dash."""
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
    """True if the text can be written as a YAML block. A text that begins with a space or an empty line cannot, because
    the first line determines the indentation; nor can a text that ends with empty lines, because they would be lost."""
    plain = escaping.escape_text(text) == text and not _UNPRINTABLE.search(text)
    return "\n" in text and not text.startswith((" ", "\n")) and not text.endswith("\n\n") and plain


def format_scalar(value: object, *, in_brackets: bool = False) -> str:
    """Return a value as text that YAML 1.1, YAML 1.2 and OmegaConf all read as this value. Text is quoted only if it
    must be. `in_brackets`: the value stands inside of `[…]` or `{…}`, where text with a comma must be quoted, too."""
    if isinstance(value, str):
        return value if _needs_no_quotes(value, in_brackets) else _double_quoted(value)
    if isinstance(value, float):
        return _format_float(value)
    return _double_quoted(value)


def reads_as(text: str, value: object) -> bool:
    """True if YAML 1.1 and OmegaConf both read the text as this value, with the same type."""
    try:
        read = omegaconf.load_plain_yaml(text), omegaconf.compose_yaml(text, lambda _: True)[1]
    except ValueError:
        return False
    return all(type(each) is type(value) and each == value for each in read)


def _needs_no_quotes(text: str, in_brackets: bool) -> bool:
    return bool(
        _PLAIN_TEXT.fullmatch(text)
        and text.lower() not in _ONE_LETTER_TRUTHS
        and not (in_brackets and "," in text)
        and reads_as(text, text)
    )


def _format_float(value: float) -> str:
    """Return the shortest decimal text of a number. A number below 0.001 or from 1e16 on is written with an exponent, a
    decimal point and the exponent's sign, because YAML 1.1 reads the number as text without them."""
    digits = repr(value)
    if "e" not in digits and (abs(value) >= 1e-3 or not value):
        return digits
    mantissa, exponent = f"{Decimal(digits).normalize():e}".split("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"


def _double_quoted(value: object) -> str:
    """Return a value as JSON, which is also YAML, with escapes for the characters that YAML does not allow."""
    written = escaping.escape_json(json.dumps(value, ensure_ascii=False))
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", written)
