"""Text of strangers made fit for a terminal or a log: what either would obey is shown as an escape instead.

A terminal obeys control characters (ECMA-48: C0, DEL, C1) and the marks that turn the order of text (Unicode UAX 9).
GitHub's runner obeys lines that begin with `::` behind blanks, and `##[…]` anywhere in a line; Azure's `##vso[…]`
(actions/runner, src/Runner.Common/ActionCommand.cs). Joiners within Chinese text and emoji are left alone.
"""

from collections.abc import Iterable

_ENDS = {0x0A: "\\n", 0x0D: "\\r"}
_CODES = (
    *(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"),
    *map(ord, "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"),
)
_AS_ESCAPE = {code: _ENDS.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}") for code in _CODES}
_IN_LINE = _AS_ESCAPE | _ENDS
_IN_JSON = {code: f"\\u{code:04x}" for code in _CODES}


class Exact(str):
    """Text that the streams of `edge` pass on as it is, in UTF-8: a format for programs with escapes of its own, what
    we draw on a terminal, a file that goes through."""

    __slots__ = ()


def text(words: str) -> str:
    """Lines of text, with every character that is obeyed instead of shown as an escape."""
    return _quiet(words.translate(_AS_ESCAPE))


def line(words: str) -> str:
    """As `text`, on one line: an end of line within it is shown, too."""
    return _quiet(words.translate(_IN_LINE))


def lines(several: Iterable[str]) -> str:
    """The lines as a text, each made printable by itself: what stands within one begins none."""
    return "".join(f"{line(each)}\n" for each in several)


def json(words: str) -> str:
    """The same JSON without such characters, which may stand in its strings alone."""
    return words.translate(_IN_JSON).replace("##", "#\\u0023")


def _quiet(words: str) -> str:
    """The lines, none of which is a command to the program that keeps a log. What the runner trims before `::` is more
    than blanks: .NET passes over characters without width."""
    if "::" not in words and "##" not in words:
        return words
    import re

    words = re.sub(r"(?m)^([^\w\n!-/:-@\[-`{-~]*):(?=:)", r"\1\\x3a", words)
    return re.sub(r"##(?=\w*\[)", r"#\\x23", words)
