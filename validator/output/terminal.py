"""Building blocks of text for a terminal: bars, aligned tables, and lines printed with control characters escaped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import click

from validator import escaping
from validator.output.json_output import JsonResult, format_json
from validator.wrapping import terminal_width, wrap_line, wrap_lines

_MAX_BAR_WIDTH, _MIN_BAR_WIDTH = 44, 10  # cells of the longest bar
_BESIDE_BAR = 37  # columns, of the name and the figure before a bar and of a mark behind it
Result = TypeVar("Result", bound=JsonResult)
_EIGHTH_BLOCKS = " ▏▎▍▌▋▊▉"


def bar_width() -> int:
    """Return how many cells the longest bar has, so that its line fits the terminal."""
    width = terminal_width()
    return _MAX_BAR_WIDTH if width is None else min(max(width - _BESIDE_BAR, _MIN_BAR_WIDTH), _MAX_BAR_WIDTH)


def draw_bar(size: float, most: float) -> str:
    """Return a bar of length `size`, exact to an eighth of a cell. A bar of length `most` fills `bar_width()` cells.
    The text is empty if `most` is 0."""
    full, part = divmod(max(round(size / most * bar_width() * 8), 0) if most else 0, 8)
    return "█" * full + (_EIGHTH_BLOCKS[part] if part else "")


_COLUMN_GAP = "  "


def wrap_to_terminal(line: str, indent: str = "") -> list[str]:
    """Return the text broken between words into lines that fit the terminal."""
    return wrap_line(indent + line, terminal_width(), 0 if indent else 2)


def format_table(titles: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()) -> list[str]:
    """Return lines of aligned columns; None is shown as `-`. While lines are wider than the terminal, the columns named
    in `spare` are left out, the first one first; `columns_left_out` names them."""
    columns = {title: (title, *cells) for title, *cells in zip(titles, *map(_cell_texts, rows), strict=True)}
    shown = [title for title in titles if title not in _too_wide(columns, spare)]
    widths = [max(map(len, columns[title])) for title in shown]
    lines = zip(*(columns[title] for title in shown), strict=True)
    return [_COLUMN_GAP.join(map(str.ljust, line, widths)).rstrip() for line in lines]


def columns_left_out(titles: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str]) -> list[str]:
    """Return a line that names the columns which `format_table` leaves out of this table; nothing if there are none."""
    columns = {title: (title, *cells) for title, *cells in zip(titles, *map(_cell_texts, rows), strict=True)}
    hidden = _too_wide(columns, spare)
    named = ", ".join(title for title in titles if title in hidden)
    line = f"not shown for want of width: {named}; a wider terminal, a pipe or --format json has all"
    return [*wrap_lines([line], terminal_width())] if hidden else []


def _too_wide(columns: Mapping[str, Sequence[str]], spare: Sequence[str]) -> set[str]:
    """Return the titles of the columns, of those in `spare`, for which the terminal has no room."""
    widths, limit = {title: max(map(len, cells)) for title, cells in columns.items()}, terminal_width()
    for title in spare:
        if limit is not None and sum(widths.values()) + len(_COLUMN_GAP) * (len(widths) - 1) > limit:
            widths.pop(title, None)
    return {*columns} - {*widths}


def _cell_texts(row: Sequence[object]) -> list[str]:
    return ["-" if value is None else escaping.escape_line(str(value)) for value in row]


def emit(result: Result, form: str, as_text: Callable[[Result], str]) -> None:
    """Print a result as JSON if `form`, the value of `--format`, is `json`; otherwise print the text that `as_text`
    returns."""
    click.echo(format_json(result) if form == "json" else as_text(result), nl=False)


def print_lines(*lines: str, err: bool = False) -> None:
    """Print lines with control characters escaped, a newline within a line too. With `err` they go to standard error as
    messages, which are broken between words where the terminal is narrow; without, they may be commands, and stay
    whole."""
    if err:
        lines = (*wrap_lines(lines, terminal_width(sys.stderr)),)
    click.echo(escaping.escape_lines(lines), nl=False, err=err)
