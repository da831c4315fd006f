"""What `copy` and `plan --write` have written, and how to go on."""

from __future__ import annotations

from pathlib import Path

from validator import printable
from validator.quoting import quote
from validator.recipes.engine import Engine
from validator.recipes.place import Placed


def text(placed: Placed, own: bool = False) -> str:
    """Files and the next commands as lines of text; `own`: the recipe trains on the user's own data already."""
    lines = [f"wrote {_short(path)}" for path in (placed.recipe, *placed.files)]
    if " " in str(placed.start):
        lines.append(
            "note: LLaMA-Factory's launcher splits at spaces under torchrun; a path without spaces starts everywhere"
        )
    lines += [f"note: {note}" for note in placed.notes]
    if not own:
        lines.append("your data: lmf-recipes data FILE --register NAME, then `dataset: NAME` in the recipe")
    lines.append(f"run: {_change(placed.folder)}lmf-recipes train {quoted(placed.start)}")
    return printable.lines(lines)


def engine(copied: Engine) -> str:
    """A DeepSpeed file, and how a recipe names it."""
    done = f"wrote {_short(copied.path)}" if copied.written else f"{_short(copied.path)} is there already, the same"
    start = "" if _here(copied.folder) else f" that is started from {_short(copied.folder)}"
    return printable.lines([done, f"use: `deepspeed: {copied.name}` in a recipe{start}"])


def quoted(path: Path) -> str:
    """The path as a word of a command line, which is no option either."""
    return quote(f"./{path}" if str(path).startswith("-") else str(path))


def _change(folder: Path) -> str:
    return "" if _here(folder) else f"cd {quoted(_short(folder))} && "


def _here(folder: Path) -> bool:
    return folder.resolve() == Path.cwd()


def _short(path: Path) -> Path:
    """The path from the working directory, where it lies in that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
