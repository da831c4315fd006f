"""What a recipe reads of the catalogue, and what of it a folder lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from validator.diagnostic import RecipeError
from validator.job.datasets import REGISTRY
from validator.read import disk
from validator.read.tree import read_json
from validator.tables.checkout import home
from validator.write import file, registry

_MODEL = "demo/tiny-qwen3"  # the one that is trained to try it out


@dataclass(frozen=True)
class Companions:
    """What a recipe reads of the catalogue: contents of files by path, and entries of the data set registry. All paths
    count from the folder that a run is started from."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    registry: str = f"data/{REGISTRY}"
    entries: Mapping[str, object] = field(default_factory=dict)


def companions(values: Mapping[str, object], header: Mapping[str, object]) -> Companions:
    """Collect the files of the catalogue that a recipe names by relative path, in its values and header block."""
    files: dict[str, bytes] = {}
    if values.get("model_name_or_path") == _MODEL:
        files |= {f"{_MODEL}/{path.name}": path.read_bytes() for path in sorted((home() / _MODEL).iterdir())}
    for engine in (values.get("deepspeed"), header.get("accelerate")):
        if isinstance(engine, str) and (home() / engine).is_file():
            files[engine] = (home() / engine).read_bytes()
    folder = str(values.get("dataset_dir") or "data")
    if not (home() / folder / REGISTRY).is_file():
        return Companions(files)
    known = read_json(str(home() / folder / REGISTRY))
    names = [name.strip() for name in str(values.get("dataset") or "").split(",")]
    entries = {name: known[name] for name in names if name in known}
    for name in (f"{folder}/{entry['file_name']}" for entry in entries.values() if "file_name" in entry):
        files[name] = (home() / name).read_bytes()
    return Companions(files, f"{folder}/{REGISTRY}", entries)


def lacking(folder: Path, name: str, content: bytes) -> bool:
    """Whether a file is still to be written. Raises RecipeError where one of that name says something else."""
    path = folder / name
    if disk.kind(path) is None:
        _stay(folder, path)
        return True
    if not _same(path, content):
        raise RecipeError(
            f"`{path}` is there and differs from the catalogue's; rename yours, or choose a folder that has none"
        )
    return False


def bring(folder: Path, name: str, content: bytes) -> bool:
    """Write a file that is lacking; False where another process was faster. Raises RecipeError as `lacking` does."""
    written = []

    def new(_: bytes | None) -> bytes | None:
        written.append(lacking(folder, name, content))
        return content if written[-1] else None

    file.folder((folder / name).parent)
    file.edit(folder / name, new)
    return written[-1]


def _same(path: Path, content: bytes) -> bool:
    """Whether a file says the same, in JSON whatever its layout is."""
    if path.suffix == ".json":
        return bool(read_json(str(path)) == json.loads(content))
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def lacking_entries(folder: Path, wanted: Companions) -> dict[str, object]:
    """The entries that the registry lacks; one that says more than the catalogue's, such as a further hub, is as good.
    Raises RecipeError where one says something else."""
    path = folder / wanted.registry
    known = read_json(str(path)) if disk.kind(path) else {}
    there = known if isinstance(known, dict) else {}
    missing = registry.lacking(path, {k: v for k, v in wanted.entries.items() if not _says(there.get(k), v)})
    if missing:
        _stay(folder, path)
    return missing


def _says(there: object, entry: object) -> bool:
    return isinstance(there, dict) and isinstance(entry, dict) and {**there, **entry} == there


def _stay(folder: Path, path: Path) -> None:
    """Raise RecipeError where a link leads out of the folder: nothing is written elsewhere than where it was asked."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise RecipeError(
            f"a link leads from `{path}` out of `{folder}`; nothing is written there, choose another folder"
        )
