"""The last lines of `copy` and `plan --write`: the files that were written, and the next command to run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from validator import escaping
from validator.catalogue.recipe_copy import CopiedFile, InstalledRecipe
from validator.escaping import shell_quote
from validator.wording import relative_to_cwd
from validator.wrapping import terminal_width, wrap_line


def format_installed_recipe(
    placed: InstalledRecipe, own: bool = False, data_findings: Sequence[str] = (), stops: bool = False
) -> str:
    """Return lines of text on a recipe that was written: its files, notes, and the next commands. `own` is true if the
    recipe already trains on the user's data, in which `data_findings` were found. `stops`: True if the run would stop
    because of them, so that it is not to be started yet."""
    lines = [f"wrote {relative_to_cwd(path)}" for path in (placed.recipe, *placed.files)]
    if " " in str(placed.start):
        lines.append(
            "note: LLaMA-Factory's launcher splits at spaces under torchrun; a path without spaces starts everywhere"
        )
    said = [*(f"note: {note}" for note in placed.notes), *data_findings]
    lines += [line for each in said for line in wrap_line(each, terminal_width())]
    if not own:
        advice = "your data: lmf-recipes data FILE --register NAME, then `dataset: NAME` in the recipe"
        lines += wrap_line(advice, terminal_width())
    if stops:
        return escaping.escape_lines([*lines, f"then: lmf-recipes data {quote_path(relative_to_cwd(placed.recipe))}"])
    cd = "" if _is_working_folder(placed.folder) else f"cd {quote_path(relative_to_cwd(placed.folder))} && "
    lines.append(f"run: {cd}lmf-recipes train {quote_path(placed.start)}")
    return escaping.escape_lines(lines)


def format_copied_file(copied: CopiedFile) -> str:
    """Return lines of text: where the DeepSpeed file is, and how a recipe names it."""
    done = (
        f"wrote {relative_to_cwd(copied.path)}"
        if copied.written
        else f"{relative_to_cwd(copied.path)} is there already, the same"
    )
    start = "" if _is_working_folder(copied.folder) else f" that is started from {relative_to_cwd(copied.folder)}"
    return escaping.escape_lines([done, f"use: `deepspeed: {copied.name}` in a recipe{start}"])


def quote_path(path: Path) -> str:
    """Return the path quoted for a shell, and with `./` in front if it would be read as an option."""
    return shell_quote(f"./{path}" if str(path).startswith("-") else str(path))


def _is_working_folder(folder: Path) -> bool:
    return os.path.realpath(folder) == str(Path.cwd())
