"""What to say of a model that is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator

from validator.tables.data import listing
from validator.tables.suggestion import suggest

_REMEDY = "its config.json in a folder is enough: plan --model FOLDER, or explain RECIPE model_name_or_path=FOLDER"


def message(name: str) -> str:
    """That the model is not known, with the name that was surely meant, or else what is enough to know it."""
    wanted = name.strip().lower()
    owner, _, own = wanted.rpartition("/")
    near = suggest(wanted, _like(owner, own), 0.85 if owner else 0.6)
    if name.startswith((".", "/", "~", "$")) or name.count("/") > 1:
        return f"model `{name}` is not known: it is no folder with a config.json"
    where = ", and no local hub cache holds it" if owner and not near else ""
    return f"model `{name}` is not known{where}{near or f'; {_REMEDY}'}"


def _like(owner: str, own: str) -> Iterator[str]:
    """Names that a slip of the finger may have missed: of the same owner, and of no other size or generation."""
    numbers = _numbers(own)
    for key, entry in listing("models").items():
        for name in entry["hub"] if owner else (key, entry["short"]):
            known = _numbers(name.rpartition("/")[2])
            same = known == numbers and name.lower().startswith(f"{owner}/") if owner else set(numbers) <= set(known)
            if same:
                yield name


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", name)
