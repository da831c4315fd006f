"""Rows as aligned text, no wider than the terminal where they can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shutil import get_terminal_size

from validator import printable

_GAP = "  "


def width() -> int:
    """Columns of the terminal, as COLUMNS or the terminal says; 80 in a pipe."""
    return get_terminal_size().columns


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str] = ()) -> list[str]:
    """Lines of columns, two blanks between them; `-` for None. The columns named in `spare` are left out, the first one
    first, as long as the lines are wider than the terminal."""
    columns = {title: (title, *cells) for title, *cells in zip(titles, *map(_cells, rows), strict=True)}
    widths = {title: max(map(len, cells)) for title, cells in columns.items()}
    for title in spare:
        if sum(widths.values()) + len(_GAP) * (len(widths) - 1) > width():
            widths.pop(title, None)
    lines = zip(*(columns[title] for title in widths), strict=True)
    padded = (map(str.ljust, line, widths.values()) for line in lines)
    return [_GAP.join(cells).rstrip() for cells in padded]


def _cells(row: Sequence[object]) -> list[str]:
    return ["-" if value is None else printable.line(str(value)) for value in row]
