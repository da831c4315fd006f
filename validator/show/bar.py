"""A bar of block characters, for terminals."""

from __future__ import annotations

WIDTH = 44  # cells of the longest bar
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(size: float, most: float) -> str:
    """A bar as long for `size` as WIDTH cells are for `most`, to an eighth of a cell; empty where `most` is 0."""
    full, part = divmod(max(round(size / most * WIDTH * 8), 0) if most else 0, 8)
    return "█" * full + (_EIGHTHS[part] if part else "")
