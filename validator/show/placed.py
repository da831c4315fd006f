"""What `copy` and `plan --write` have written, and how to go on."""

from __future__ import annotations

from pathlib import Path

from validator.recipes.place import Placed


def text(placed: Placed) -> str:
    """Files, notes and the next command as lines of text."""
    lines = [f"wrote {path}" for path in (placed.recipe, *placed.files)]
    lines += [f"note: {note}" for note in placed.notes]
    here = placed.folder == Path.cwd()
    recipe = placed.recipe.absolute().relative_to(placed.folder)
    lines.append(f"run: {'' if here else f'cd {placed.folder} && '}lmf-recipes train {recipe}")
    return "\n".join(lines) + "\n"
