"""Pieces of bash, and of Python that bash runs, as lines of a job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def lines(file: Path) -> list[str]:
    """Those of a file."""
    return file.read_text("utf-8").splitlines()


def program(name: str, file: Path, argument: str) -> list[str]:
    """A function of bash that runs a file of Python, which needs Python's own library alone, with an argument."""
    text = lines(file)
    short = [line for before, line in zip(["", *text], text, strict=False) if before or line]  # no two blank lines
    return [f"{name}() {{", f"  python3 - {argument} <<'PYTHON'", *short, "PYTHON", "}"]


def inside(block: Iterable[str]) -> list[str]:
    """Lines as they stand in a block."""
    return [f"  {line}" for line in block]
