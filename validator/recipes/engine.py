"""DeepSpeed files of the catalogue: their names, and a copy of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.read.disk import expanded
from validator.recipes.companions import bring, lacking
from validator.tables.checkout import home

_FOLDER = "deepspeed"


@dataclass(frozen=True)
class Engine:
    """A DeepSpeed file in a folder, whether it was written just now, and what recipes started from there call it."""

    path: Path
    written: bool
    folder: Path
    name: str


def names() -> list[str]:
    """Every DeepSpeed file by name, sorted."""
    return sorted(path.name for path in (home() / _FOLDER).glob("*.json"))


def known(name: str) -> str | None:
    """The file that `ds_z2`, `ds_z2.json` or `deepspeed/ds_z2.json` means, by name; None where there is none."""
    wanted = name.removeprefix(f"{_FOLDER}/").removesuffix(".json") + ".json"
    return wanted if wanted in names() else None


def copy(name: str, dest: str) -> Engine:
    """Write the file into the folder's deepspeed/, unless it is there. Raises RecipeError where another one is, or for
    the name of a file."""
    folder = expanded(dest)
    if folder.suffix == ".json":
        raise RecipeError(f"`{dest}`: give the folder that recipes are started from; the file goes to its {_FOLDER}/")
    if folder.name == _FOLDER:
        folder = folder.parent
    value = f"{_FOLDER}/{name}"
    content = (home() / value).read_bytes()
    missing = lacking(folder, value, content) and bring(folder, value, content)
    return Engine(folder / value, missing, folder, value)
