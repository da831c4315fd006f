"""Adds entries to a dataset_info.json without changing the rest of its text."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from validator.errors import RecipeError
from validator.recipe import atomic_write, safe_read
from validator.recipe.safe_read import read_json
from validator.rows.dataset_attr import Entry, entry_as_json, is_same_data


def undefined_entries(path: Path, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries that the dataset_info.json at `path` does not define. The file need not exist. Raises
    RecipeError if it defines one of the entries for other data, or is not a JSON object."""
    known_entries = _known_entries(path)
    for name, entry in entries.items():
        known = known_entries.get(name, entry)
        if not (isinstance(known, dict) and is_same_data(known, entry)):
            found = f"`{path}` defines `{name}` for other data or columns than {entry_as_json(name, entry)}"
            raise RecipeError(f"{found}; rename that entry, or take it out")
    return {name: entry for name, entry in entries.items() if name not in known_entries}


def add_entries(path: Path, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Add to the dataset_info.json at `path` those of the entries that it does not define, and return them. A missing
    file is created. Raises RecipeError if the file defines one of the entries for other data, is not a JSON object, or
    cannot be written."""
    new: dict[str, Entry] = {}

    def extended(before: bytes | None) -> str | None:
        new.update(undefined_entries(path, entries))  # as it is now, whatever another process has added
        if before is None:
            return json.dumps(new, indent=2, ensure_ascii=False) + "\n"
        return _with_members(before.decode(), new) if new else None

    atomic_write.make_folder(path.parent)
    atomic_write.edit_file(path, extended)
    return new


def path_from_registry(path: Path, folder: Path) -> str:
    """Return the text by which the dataset_info.json in `folder` must name a file or folder in `file_name`.
    LLaMA-Factory joins it to `dataset_dir`. The text is a relative path if the file lies below `folder`, or if both lie
    below the working directory; otherwise an absolute path. Links to folders are resolved first, because `..` leads to
    the parent of the link's target."""
    place, start = Path(os.path.realpath(path.parent), path.name), Path(os.path.realpath(folder))
    cwd = Path(os.path.realpath("."))
    near = place.is_relative_to(start) or (place.is_relative_to(cwd) and start.is_relative_to(cwd))
    return Path(os.path.relpath(place, start) if near else place).as_posix()


def _known_entries(path: Path) -> dict[str, object]:
    entries = read_json(str(path)) if safe_read.path_kind(path) else {}
    if not isinstance(entries, dict):
        raise RecipeError(f"`{path}` is not a JSON object of data sets by name")
    return entries


def _with_members(text: str, entries: Mapping[str, Entry]) -> str:
    """Return the text of a JSON object with more members before its last brace, indented like its first member."""
    first = re.search(r'\{\s*?\n([ \t]+)"', text)
    newline = "\r\n" if "\r\n" in text else "\n"
    before, brace, after = text.rpartition("}")
    before = before.rstrip()
    members = json.dumps(entries, indent=first[1] if first else 2, ensure_ascii=False)[1:-1].rstrip()
    comma = "" if before.endswith("{") else ","
    return before + (comma + members + "\n").replace("\n", newline) + brace + after
