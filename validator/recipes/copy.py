"""`copy`: a recipe of the catalogue as the start of one's own."""

from __future__ import annotations

from pathlib import Path

from validator import __version__
from validator.read.recipe import load
from validator.recipes import catalogue
from validator.recipes.place import Placed, place

_CLOSE = "# ///"
_SUFFIXES = (".yaml", ".yml")


def copy(name: str, dest: str) -> Placed:
    """Write the recipe and what it reads to a file or folder. Raises RecipeError rather than overwrite anything."""
    source = catalogue.file(name)
    target = _target(dest, source.name)
    document = load(str(source))
    return place(target, with_origin(document.text, source.stem), document.values)


def with_origin(text: str, name: str) -> str:
    """The recipe's text, with its origin and version in the header block."""
    lines = [line for line in text.splitlines() if not line.startswith("# origin:")]
    lines.insert(lines.index(_CLOSE), f"# origin: {name} of llamafactory-recipes {__version__}")
    return "\n".join(lines) + "\n"


def _target(dest: str, name: str) -> Path:
    path = Path(dest).expanduser()
    if path.is_dir() or path.suffix not in _SUFFIXES:
        return path / name
    return path
