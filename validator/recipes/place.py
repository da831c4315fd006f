"""Put a recipe into a folder together with what it reads, without ever overwriting a file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from validator.diagnostic import RecipeError
from validator.job.datasets import REGISTRY
from validator.job.job import resolve
from validator.quoting import quote
from validator.read.recipe import parse
from validator.recipes.companions import bring, companions, lacking, lacking_entries
from validator.write import file, registry

if TYPE_CHECKING:
    from validator.study.own import Own

# The launch command in a recipe's comment.
_COMMAND = re.compile(r"(?m)^(# +.*(?:llamafactory-cli train|llamafactory\.launcher) )recipes/\S+$")


@dataclass(frozen=True)
class Placed:
    """A recipe that was written, the files written or added to for it, the folder to start a run from, and the recipe's
    path from there; `notes` are what to heed beside."""

    recipe: Path
    files: tuple[Path, ...]
    folder: Path
    start: Path
    notes: tuple[str, ...] = ()


def place(target: Path, text: str, values: Mapping[str, object], own: Own | None = None) -> Placed:
    """Write the recipe, and the DeepSpeed or accelerate file and data sets of the catalogue that it names into the
    folder that it is started from. `own` is the user's own data, in place of those data sets. Files that are there
    already and say the same stay as they are.

    Raises RecipeError, before anything is written, where the target exists, could not be started by that name, or
    something there says otherwise."""
    require_new(target)
    header = parse(str(target), text).header
    folder, wanted = root(target), companions({**values, "dataset": ""} if own else values, header)
    if own:
        wanted = replace(wanted, entries={own.name: own.entry((folder / wanted.registry).parent)})
    start = _within(target, folder)
    _require_one_word(start, text)
    entries = lacking_entries(folder, wanted)
    missing = [name for name, data in wanted.files.items() if lacking(folder, name, data)]
    written = [name for name in missing if bring(folder, name, wanted.files[name])]
    if entries and registry.add(folder / wanted.registry, entries):
        written.append(wanted.registry)
    # Last: a recipe that is there has all that it reads.
    file.create(target, _COMMAND.sub(lambda command: command[1] + quote(str(start)), text))
    return Placed(target, tuple(folder / name for name in written), folder, start, own.notes if own else ())


def require_new(target: Path) -> None:
    """Raises RecipeError where the file is there already."""
    if os.path.lexists(target):
        raise RecipeError(f"`{target}` exists and is not overwritten; choose another name, or remove it")


def root(target: Path) -> Path:
    """The folder to start a run of this recipe from, which its relative paths count from: the working directory where
    the recipe lies in that, and it holds a data set registry or DeepSpeed files already; else the recipe's own."""
    own, here = target.parent.resolve(), Path.cwd()
    project = (here / "data" / REGISTRY).exists() or (here / "deepspeed").is_dir()
    return here if project and own.is_relative_to(here) else own


def _require_one_word(start: Path, text: str) -> None:
    """Raises RecipeError for a path with a space where the run starts through torchrun, as PTH012 says."""
    if not re.search(r"\s", str(start)):
        return
    job = resolve(parse(str(start), text))
    if job.world > 1 or job.engine:
        splits = "at which LLaMA-Factory splits the torchrun command"
        raise RecipeError(f"`{start}` holds a space, {splits}; choose another name")


def _within(target: Path, folder: Path) -> Path:
    """The recipe's path from the folder. Raises RecipeError where no command line can show it."""
    path = target.parent.resolve().relative_to(folder) / target.name
    if not str(path).isprintable():
        raise RecipeError(f"`{target}` holds characters that a command cannot show; choose another name")
    return path
