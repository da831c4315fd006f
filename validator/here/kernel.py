"""Files that the kernel writes: /proc, /sys."""

from __future__ import annotations

from pathlib import Path


def lines(file: Path) -> list[str]:
    """No lines where it is not there or may not be read, as the speed of a card that is down."""
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def word(file: Path) -> str:
    """Its first line without blanks; empty where there is none."""
    return next(iter(lines(file)), "").strip()
