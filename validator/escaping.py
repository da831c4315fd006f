"""Escapes untrusted text for a terminal, a log, JSON and a shell, so that control sequences are shown and not obeyed.

A terminal obeys control characters (ECMA-48: C0, DEL, C1) and the marks that change the direction of text (Unicode UAX
9). GitHub's runner obeys lines that begin with `::`, also after blanks, and `##[…]` anywhere in a line; Azure's runner
obeys `##vso[…]` (actions/runner, src/Runner.Common/ActionCommand.cs). Joiners within Chinese text and emoji are left
alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_LINE_ENDS = {0x0A: "\\n", 0x0D: "\\r"}
_OBEYED_CODES = (
    *(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"),
    *map(ord, "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"),
)
_TEXT_ESCAPES = {
    code: _LINE_ENDS.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}") for code in _OBEYED_CODES
}
_LINE_ESCAPES = _TEXT_ESCAPES | _LINE_ENDS
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _OBEYED_CODES}


class RawText(str):
    """Text that the streams of `entry` write without escaping, in UTF-8: formats that escape by themselves, drawings of
    this program, and the content of files."""

    __slots__ = ()


def escape_text(words: str) -> str:
    """Return text of several lines with control characters escaped."""
    return _escape_log_commands(words.translate(_TEXT_ESCAPES))


def escape_line(words: str) -> str:
    """Return text as one line: newlines are escaped like control characters."""
    return _escape_log_commands(words.translate(_LINE_ESCAPES))


def escape_lines(several: Iterable[str]) -> str:
    """Return the lines as one text. Each line is escaped by itself, so that a newline within one starts no other."""
    return "".join(f"{escape_line(each)}\n" for each in several)


def escape_json(words: str) -> str:
    """Return the JSON with control characters escaped; they can occur only within its strings."""
    return words.translate(_JSON_ESCAPES).replace("##", "#\\u0023")


def _escape_log_commands(words: str) -> str:
    """Return the text in which nothing reads as a command to a CI runner: a colon or `#` of `::` and `##[` is escaped.
    The runner trims more than blanks before `::`: .NET skips characters without width, too."""
    if "::" not in words and "##" not in words:
        return words
    words = re.sub(r"(?m)^([^\w\n!-/:-@\[-`{-~]*):(?=:)", r"\1\\x3a", words)
    return re.sub(r"##(?=\w*\[)", r"#\\x23", words)


def shell_quote(word: str) -> str:
    """Return the word quoted for bash. A word with control characters gets the form `$'…'` (bash, zsh, ksh) with
    escapes for its bytes, which is safe to print and still exact."""
    if escape_line(word) == word and not any("\ud800" <= character <= "\udfff" for character in word):
        return shlex.quote(word)
    return f"$'{''.join(map(_escape_character, word))}'"


def shell_join(words: Iterable[str]) -> str:
    """Return the words as one command line for bash."""
    return " ".join(map(shell_quote, words))


def _escape_character(character: str) -> str:
    if character.isalnum() or character in " /._-=,":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
