"""The header block of a recipe: the lines between `# /// recipe` and `# ///`, as PEP 723 gave Python scripts."""

from __future__ import annotations

from typing import NamedTuple

from validator.diagnostic import Diagnostic, Severity

_OPEN, _CLOSE = "# /// recipe", "# ///"


class Block(NamedTuple):
    """A header block. `first` and `last` are the lines of its marks, from 1; `text` is the YAML between them."""

    first: int
    last: int
    text: str


def find(text: str) -> Block | Diagnostic | None:
    """The header block of a recipe, or what is wrong with it; None where there is none."""
    if _OPEN not in text:
        return None
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.rstrip() == _OPEN]
    if len(starts) != 1:
        what = f"has {len(starts)} header blocks; keep one `{_OPEN}` … `{_CLOSE}`"
        return Diagnostic("LOA005", Severity.ERROR, what, starts[1] + 1) if starts else None
    start = starts[0]
    end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith("#")), len(lines))
    close = next((i for i in range(start + 1, end) if lines[i].rstrip() == _CLOSE), None)
    if close is None:
        what = f"header block is not closed; end it with a `{_CLOSE}` line"
        return Diagnostic("LOA005", Severity.ERROR, what, start + 1)
    return Block(start + 1, close + 1, "\n".join(_uncommented(line) for line in lines[start + 1 : close]))


def _uncommented(line: str) -> str:
    return line[2:] if line.startswith("# ") else line[1:]
