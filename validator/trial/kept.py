"""Answers kept in the user's cache folder, by everything that decides them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from validator import __version__
from validator.diagnostic import RecipeError
from validator.read import home
from validator.simulate.answer import Answer, from_json
from validator.simulate.cell import Cell
from validator.write import file


def place(cell: Cell, releases: Mapping[str, str]) -> Path:
    """The file of a cell's answer."""
    told = json.dumps([asdict(cell), dict(releases), __version__], sort_keys=True, default=str)
    return _folder() / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.json"


def read(path: Path) -> Answer | None:
    """The answer that is kept; None where there is none that can be used."""
    try:
        return from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(path: Path, answer: Answer) -> None:
    """Writes the answer; a folder that cannot be written to costs only the next call its time."""
    with suppress(RecipeError):
        file.folder(path.parent)
        file.replace(path, json.dumps(answer._asdict()))


def _folder() -> Path:
    """Without a home one in which nothing is, nor can be."""
    base = home.base("XDG_CACHE_HOME", ".cache") or Path(os.devnull)
    return base / "lmf-recipes" / "simulations"
