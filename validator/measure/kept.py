"""Measured steps by machine, in the user's data folder: what corrects the predictions for it from then on."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import NamedTuple

from validator.diagnostic import RecipeError
from validator.read import home
from validator.write import file

# Times that a step may take what was predicted: no machine is so far from it.
_FARTHEST = 1e9


class Measured(NamedTuple):
    """Steps of one recipe on one machine. `expected`: the seconds that were predicted for them, uncorrected."""

    machine: str
    recipe: str
    seconds: float
    expected: float
    steps: int
    date: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.expected


def place() -> Path | None:
    """The file; None for who has no home."""
    base = home.base("XDG_DATA_HOME", ".local/share")
    return base and base / "lmf-recipes" / "measured.json"


def every() -> list[Measured]:
    """All that are kept, oldest first; none where there is no file. Raises RecipeError for one that is not ours."""
    path = place()
    if path is None:
        return []
    try:
        rows = json.loads(path.read_text("utf-8"))
        return [_measured(row) for row in rows]
    except FileNotFoundError:
        return []
    except OSError as err:
        raise RecipeError(f"`{path}` cannot be read: {(err.strerror or str(err)).lower()}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RecipeError(f"`{path}` is not as `calibrate` writes it; mend or remove it") from None


def _measured(row: dict[str, object]) -> Measured:
    kept = Measured(
        str(row["machine"]),
        str(row["recipe"]),
        float(str(row["seconds"])),
        float(str(row["expected"])),
        int(str(row["steps"])),
        str(row["date"]),
    )
    if not (kept.seconds > 0 and kept.expected > 0 and 1 / _FARTHEST < kept.ratio < _FARTHEST):
        raise ValueError(row)
    return kept


def correction(machine: str) -> float | None:
    """Measured seconds over predicted on this machine, the geometric mean over its recipes; None: nothing measured."""
    ratios = [kept.ratio for kept in every() if kept.machine == machine]
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None


def keep(measured: Measured) -> None:
    """Adds it, in place of an older one of the same recipe on the same machine. Raises RecipeError."""
    path = _writable()
    file.folder(path.parent)
    file.edit(path, lambda _: _text([*(kept for kept in every() if not _same(kept, measured)), measured]))


def forget(machine: str) -> int:
    """Removes what was measured on a machine, and says how many recipes that were. Raises RecipeError."""
    number = sum(each.machine == machine for each in every())
    if number:
        file.edit(_writable(), lambda _: _text([each for each in every() if each.machine != machine]))
    return number


def _writable() -> Path:
    if path := place():
        return path
    raise RecipeError("there is no home folder to keep what is measured in; name one: XDG_DATA_HOME=FOLDER")


def _same(one: Measured, other: Measured) -> bool:
    return (one.machine, one.recipe) == (other.machine, other.recipe)


def _text(every: list[Measured]) -> str:
    return json.dumps([each._asdict() for each in every], indent=1) + "\n"
