"""Put a recipe into a folder together with what it reads, without ever overwriting a file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.read.tree import read_json
from validator.tables.checkout import home
from validator.write import file

_REGISTRY = "dataset_info.json"
# The launch command in a recipe's comment.
_COMMAND = re.compile(r"(?m)^(# +.*llamafactory-cli train )recipes/\S+$")


@dataclass(frozen=True)
class Placed:
    """A recipe that was written, the files written for it, the folder to start from, and what to know."""

    recipe: Path
    files: tuple[Path, ...]
    folder: Path
    notes: tuple[str, ...]


def place(target: Path, text: str, values: Mapping[str, object]) -> Placed:
    """Write the recipe, and beside it the DeepSpeed file and the data sets of the catalogue that it names.

    What a folder above the target holds already is used as it is. Raises RecipeError where the target exists."""
    if target.exists():
        raise RecipeError(f"`{target}` exists and is not overwritten; choose another name, or remove it")
    wanted = companions(values)
    folder = next(
        (f for f in target.absolute().parents if all((f / name).exists() for name in wanted)), target.absolute().parent
    )
    notes = [note for name, data in wanted.items() if (note := _kept(folder, name, data))]
    missing = {name: data for name, data in wanted.items() if not (folder / name).exists()}
    file.create(target, _COMMAND.sub(rf"\g<1>{target.absolute().relative_to(folder)}", text))
    for name, data in missing.items():
        file.create(folder / name, data)
    return Placed(target, tuple(folder / name for name in missing), folder, tuple(notes))


def companions(values: Mapping[str, object]) -> dict[str, str]:
    """The files of the catalogue that a recipe names by relative path, with their contents."""
    root, files = home(), {}
    engine = values.get("deepspeed")
    if isinstance(engine, str) and (root / engine).is_file():
        files[engine] = (root / engine).read_text("utf-8")
    folder = str(values.get("dataset_dir") or "data")
    if (root / folder / _REGISTRY).is_file():
        known = read_json(str(root / folder / _REGISTRY))
        names = [name.strip() for name in str(values.get("dataset") or "").split(",")]
        entries = {name: known[name] for name in names if name in known}
        files[f"{folder}/{_REGISTRY}"] = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
        for name in (entry["file_name"] for entry in entries.values() if "file_name" in entry):
            files[f"{folder}/{name}"] = (root / folder / name).read_text("utf-8")
    return files


def _kept(folder: Path, name: str, data: str) -> str | None:
    """What to know about a file that is there already and differs in a way that matters."""
    if not (folder / name).exists():
        return None
    try:
        there, ours = read_json(str(folder / name)), json.loads(data)
    except RecipeError as err:
        return f"kept as it is: {err}"
    if name.endswith(_REGISTRY):
        lacking = [key for key in ours if not isinstance(there, dict) or key not in there]
        return f"`{folder / name}` is kept; it does not define {', '.join(lacking)}" if lacking else None
    return f"`{folder / name}` is kept; it differs from the catalogue's" if there != ours else None
