"""Escapes text of strangers for a terminal, a log, JSON and a shell: what one of them would obey is shown instead.

A terminal obeys control characters (ECMA-48: C0, DEL, C1) and the marks that turn the order of text (Unicode UAX 9).
GitHub's runner obeys lines that begin with `::` behind blanks, and `##[…]` anywhere in a line; Azure's `##vso[…]`
(actions/runner, src/Runner.Common/ActionCommand.cs). Joiners within Chinese text and emoji are left alone."""

from __future__ import annotations

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
    """Text that the streams of `edge` pass on as it is, in UTF-8: a format for programs with escapes of its own, what
    we draw on a terminal, a file that goes through."""

    __slots__ = ()


def escape_text(words: str) -> str:
    """Lines of text, with every character that is obeyed instead of shown as an escape."""
    return _escape_log_commands(words.translate(_TEXT_ESCAPES))


def escape_line(words: str) -> str:
    """As `text`, on one line: an end of line within it is shown, too."""
    return _escape_log_commands(words.translate(_LINE_ESCAPES))


def escape_lines(several: Iterable[str]) -> str:
    """The lines as a text, each made printable by itself: what stands within one begins none."""
    return "".join(f"{escape_line(each)}\n" for each in several)


def escape_json(words: str) -> str:
    """The same JSON without such characters, which may stand in its strings alone."""
    return words.translate(_JSON_ESCAPES).replace("##", "#\\u0023")


def _escape_log_commands(words: str) -> str:
    """The lines, none of which is a command to the program that keeps a log. What the runner trims before `::` is more
    than blanks: .NET passes over characters without width."""
    if "::" not in words and "##" not in words:
        return words
    import re

    words = re.sub(r"(?m)^([^\w\n!-/:-@\[-`{-~]*):(?=:)", r"\1\\x3a", words)
    return re.sub(r"##(?=\w*\[)", r"#\\x23", words)


def shell_quote(word: str) -> str:
    """The word as bash reads it. One that cannot be shown as it is gets the form `$'…'` (bash, zsh, ksh), in which its
    bytes are escapes: safe to print, and still exact."""
    if escape_line(word) == word and not any("\ud800" <= character <= "\udfff" for character in word):
        return shlex.quote(word)
    return f"$'{''.join(map(_escape_character, word))}'"


def shell_join(words: Iterable[str]) -> str:
    """The words as a command line."""
    return " ".join(map(shell_quote, words))


def _escape_character(character: str) -> str:
    if character.isalnum() or character in " /._-=,":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
