"""Adding entries to a dataset_info.json whose text otherwise stays as it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from validator.errors import RecipeError
from validator.recipe import atomic_write, safe_read
from validator.recipe.safe_read import read_json


def undefined_entries(path: Path, entries: Mapping[str, object]) -> dict[str, object]:
    """Return the entries that the registry does not define. The registry need not exist.

    Raises RecipeError if it defines one of them in another way, or is no registry."""
    known = _known_entries(path)
    for name, entry in entries.items():
        if name in known and known[name] != entry:
            raise RecipeError(
                f"`{path}` defines `{name}` already, in another way; choose another name, or take that entry out"
            )
    return {name: entry for name, entry in entries.items() if name not in known}


def add_entries(path: Path, entries: Mapping[str, object]) -> dict[str, object]:
    """Write the entries that the registry does not define, and return them; a missing registry is made.

    Raises RecipeError as `undefined_entries` does, and if it cannot be written."""
    new: dict[str, object] = {}

    def extended(before: bytes | None) -> str | None:
        new.update(undefined_entries(path, entries))  # as it is now, whatever another process has added
        if before is None:
            return json.dumps(new, indent=2, ensure_ascii=False) + "\n"
        return _with_members(before.decode(), new) if new else None

    atomic_write.make_folder(path.parent)
    atomic_write.edit_file(path, extended)
    return new


def path_from_registry(path: Path, folder: Path) -> str:
    """A file or folder as LLaMA-Factory finds it from `dataset_dir`, with which it joins it: beside or below that, else
    below the working directory, else by its whole path. Links to folders are followed, as `..` leads out of where they
    lead to."""
    place, start = Path(os.path.realpath(path.parent), path.name), Path(os.path.realpath(folder))
    here = Path(os.path.realpath("."))
    near = place.is_relative_to(start) or (place.is_relative_to(here) and start.is_relative_to(here))
    return Path(os.path.relpath(place, start) if near else place).as_posix()


def _known_entries(path: Path) -> dict[str, object]:
    known = read_json(str(path)) if safe_read.path_kind(path) else {}
    if not isinstance(known, dict):
        raise RecipeError(f"`{path}` is not a JSON object of data sets by name")
    return known


def _with_members(text: str, entries: Mapping[str, object]) -> str:
    """Return the text of a JSON object with further members before its last brace, indented as its first member is."""
    first = re.search(r'\{\s*?\n([ \t]+)"', text)
    newline = "\r\n" if "\r\n" in text else "\n"
    before, brace, after = text.rpartition("}")
    before = before.rstrip()
    members = json.dumps(entries, indent=first[1] if first else 2, ensure_ascii=False)[1:-1].rstrip()
    comma = "" if before.endswith("{") else ","
    return before + (comma + members + "\n").replace("\n", newline) + brace + after
