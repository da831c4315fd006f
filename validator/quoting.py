"""Words of a command line, to be copied from a terminal or to stand in a script of bash."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from validator import printable


def quote(word: str) -> str:
    """The word as bash reads it. One that cannot be shown as it is gets the form `$'…'` (bash, zsh, ksh), in which its
    bytes are escapes: safe to print, and still exact."""
    if printable.line(word) == word and not any("\ud800" <= character <= "\udfff" for character in word):
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def join(words: Iterable[str]) -> str:
    """The words as a command line."""
    return " ".join(map(quote, words))


def _escaped(character: str) -> str:
    if character.isalnum() or character in " /._-=,":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="surrogateescape"))
