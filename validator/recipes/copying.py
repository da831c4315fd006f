"""`copy`: a recipe of the catalogue as the start of one's own."""

from __future__ import annotations

from pathlib import Path

from validator import __version__
from validator.diagnostic import RecipeError
from validator.read import loader
from validator.recipes import placing
from validator.recipes.placing import Placed
from validator.tables.checkout import home
from validator.tables.suggestion import suggest

_CLOSE = "# ///"
_SUFFIXES = (".yaml", ".yml")


def names() -> list[str]:
    """Every recipe of the catalogue by name, sorted."""
    return sorted(path.stem for path in (home() / "recipes").glob("*.yaml"))


def find(name: str) -> Path:
    """The file of a recipe of the catalogue. Raises RecipeError with the nearest name where there is none."""
    wanted = name.removesuffix(".yaml")
    if wanted not in names():
        near = suggest(wanted, names()) or "; `lmf-recipes list` shows all"
        raise RecipeError(f"no recipe `{wanted}` in the catalogue{near}")
    return home() / "recipes" / f"{wanted}.yaml"


def copy(name: str, dest: str) -> Placed:
    """Write the recipe and what it reads to a file or folder. Raises RecipeError rather than overwrite anything."""
    source = find(name)
    target = _target(dest, source.name)
    document = loader.load(str(source))
    return placing.place(target, with_origin(document.text, source.stem), document.values)


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


def text(placed: Placed) -> str:
    """What was written, and how to go on, as lines of text."""
    lines = [f"wrote {path}" for path in (placed.recipe, *placed.files)]
    lines += [f"note: {note}" for note in placed.notes]
    here = placed.folder == Path.cwd()
    recipe = placed.recipe.absolute().relative_to(placed.folder)
    lines.append(f"run: {'' if here else f'cd {placed.folder} && '}lmf-recipes train {recipe}")
    return "\n".join(lines) + "\n"
