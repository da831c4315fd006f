"""Lines no wider than the terminal, broken between words; in a pipe lines stay whole, because scripts read lines.

A command that is meant to be copied is never broken, and neither is text between backticks that fits a line."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TextIO

_MIN_WIDTH = 20  # columns, below which lines are not broken any further
# A piece of text that stays on one line, with the blanks before it: text between backticks, or a word.
_PIECES = re.compile(r"\s*(?:`[^`]*`|\S)+")
_WORDS = re.compile(r"\s*\S+")


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the number of columns that lines on `stream` (None: standard output) may have: the variable COLUMNS, or
    the width of the terminal. None if there is no limit, because the stream is a pipe or a file."""
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told):
        return max(int(told), _MIN_WIDTH)
    with suppress(OSError, ValueError, AttributeError):
        return max(os.get_terminal_size((stream or sys.stdout).fileno()).columns, _MIN_WIDTH)
    return None


def is_terminal(stream: TextIO | None = None) -> bool:
    """True if a person reads the stream (None: standard output) on a terminal."""
    with suppress(ValueError, AttributeError):
        return (stream or sys.stdout).isatty()
    return False


def wrap_line(line: str, width: int | None, hanging: int = 2) -> list[str]:
    """Return the line broken between words into lines of at most `width` columns; None means no limit. Further lines
    are indented by `hanging` columns more than the first. A single word that is wider than a line stays whole."""
    if width is None or count_columns(line) <= width:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip()) + hanging, width // 2)
    lines = [""]
    for piece in _pieces(line, width - len(indent)):
        if lines[-1].strip() and count_columns(lines[-1] + piece) > width:
            lines.append(indent + piece.lstrip())
        else:
            lines[-1] += piece
    return lines


def _pieces(line: str, width: int) -> Iterator[str]:
    """Yield the parts of a line that stay whole, each with the blanks before it."""
    for piece in _PIECES.findall(line):
        yield from [piece] if count_columns(piece.strip()) <= width else _WORDS.findall(piece)


def wrap_lines(lines: Iterable[str], width: int | None, hanging: int = 2) -> Iterator[str]:
    """Yield several lines, each broken like that of `wrap_line`."""
    for line in lines:
        yield from wrap_line(line, width, hanging)


def count_columns(text: str) -> int:
    """Return the columns of a terminal that the text takes: two for a Chinese character."""
    return len(text) if text.isascii() else sum(1 + (unicodedata.east_asian_width(each) in "WF") for each in text)
