"""Building blocks of text for a terminal: bars, aligned tables, and lines printed with control characters escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from shutil import get_terminal_size
from typing import TypeVar

import click

from validator import escaping
from validator.output.json_output import JsonResult, format_json

BAR_WIDTH = 44  # cells of the longest bar
Result = TypeVar("Result", bound=JsonResult)
_EIGHTH_BLOCKS = " ▏▎▍▌▋▊▉"


def draw_bar(size: float, most: float) -> str:
    """Return a bar of length `size`, exact to an eighth of a cell. A bar of length `most` fills BAR_WIDTH cells. The
    text is empty if `most` is 0."""
    full, part = divmod(max(round(size / most * BAR_WIDTH * 8), 0) if most else 0, 8)
    return "█" * full + (_EIGHTH_BLOCKS[part] if part else "")


_COLUMN_GAP = "  "


def terminal_width() -> int:
    """Return the number of columns, from the variable COLUMNS or the terminal; 80 if the output is a pipe."""
    return get_terminal_size().columns


def format_table(titles: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()) -> list[str]:
    """Return lines of aligned columns; None is shown as `-`. While lines are wider than the terminal, the columns named
    in `spare` are left out, the first one first."""
    columns = {title: (title, *cells) for title, *cells in zip(titles, *map(_cell_texts, rows), strict=True)}
    widths = {title: max(map(len, cells)) for title, cells in columns.items()}
    for title in spare:
        if sum(widths.values()) + len(_COLUMN_GAP) * (len(widths) - 1) > terminal_width():
            widths.pop(title, None)
    lines = zip(*(columns[title] for title in widths), strict=True)
    padded = (map(str.ljust, line, widths.values()) for line in lines)
    return [_COLUMN_GAP.join(cells).rstrip() for cells in padded]


def _cell_texts(row: Sequence[object]) -> list[str]:
    return ["-" if value is None else escaping.escape_line(str(value)) for value in row]


def emit(result: Result, form: str, as_text: Callable[[Result], str]) -> None:
    """Print a result as JSON if `form`, the value of `--format`, is `json`; otherwise print the text that `as_text`
    returns."""
    click.echo(format_json(result) if form == "json" else as_text(result), nl=False)


def print_lines(*lines: str, err: bool = False) -> None:
    """Print lines with control characters escaped, a newline within a line too; with `err` to standard error."""
    click.echo(escaping.escape_lines(lines), nl=False, err=err)
